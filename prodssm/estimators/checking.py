"""How many components a mixture needs so that a model's forecast agrees with futures sampled from the model."""

from collections.abc import Sequence
from dataclasses import replace

from prodssm.data.series import Series
from prodssm.estimators.fitted import FittedModel
from prodssm.methods.base import Method
from prodssm.methods.moments import Moments
from prodssm.scoring.diagnostics import GaussianCheck, with_advice

NUMBERS = (2, 4, 8, 16)  # of components that are tried, beyond that of the model
FIT_STEPS, FIT_SAMPLES = 20, 400  # of the check at the end of a fit
CHOICE_SAMPLES = 4000  # of one that chooses the number of components
FEWER = "Forecast fewer steps"
GLOBAL = f"{FEWER}: a mixture has no rule for weights='global'."
ASK = f"{FEWER}, or ask model.check(data) how many components of a mixture would hold."


def check_components(member: FittedModel, standard: Series, steps: int, samples: int) -> dict[int, GaussianCheck]:
    """Checks with more and more components, from those of the model on, until one holds at all steps.

    Args:
        member: The model.
        standard: A standardised series.
        steps: Number of steps ahead.
        samples: Number of sampled futures.

    Returns:
        By number of components. Numbers with which the filter or the forecast overflows are left out.
    """
    checks = {member.components: member.check(standard, steps, samples)}
    for count in NUMBERS:
        method = with_components(member.method, count)
        if list(checks.values())[-1].holds:
            break
        if count <= member.components or not method.takes(member.ssm.weights):
            continue
        try:
            checks[count] = replace(member, method=method).check(standard, steps, samples)
        except FloatingPointError:
            continue
    return checks


def check_model(member: FittedModel, standard: Series, steps: int, samples: int) -> GaussianCheck:
    """The check of a model, with the number of components that holds; see `check_components`."""
    checks = check_components(member, standard, steps, samples)
    return with_advice(checks, GLOBAL if member.ssm.weights == "global" else f"{FEWER}.")


def check_fit(member: FittedModel, series: Sequence[Series], *, choose: bool) -> dict[int, GaussianCheck]:
    """The check at the end of a fit, on the longest series; of more components, each compiled anew, to choose their number."""
    longest = max(series, key=len)
    steps = max(min(FIT_STEPS, len(longest) // 2), 1)
    if choose:
        return check_components(member, longest, steps, CHOICE_SAMPLES)
    found = member.check(longest, steps, FIT_SAMPLES)
    return {member.components: with_advice({member.components: found}, GLOBAL if member.ssm.weights == "global" else ASK)}


def with_components(method: Method, count: int) -> Moments:
    """Moment matching with so many components, with the order of the method if it has one."""
    return (method if isinstance(method, Moments) else Moments()).with_components(count)
