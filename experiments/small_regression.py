"""How good is `DeepStochasticRegressor()` without arguments on few rows, next to a Gaussian process?

Ten functions of one to five inputs, in five pairs (one input, two inputs, five inputs, linear, heteroscedastic noise). Odd
functions with odd seeds choose the defaults for few rows; even functions with even seeds report them, once (`--report`).
The rival is scikit-learn's `GaussianProcessRegressor` with kernel RBF + white noise, `normalize_y` and nine restarts, behind
a `StandardScaler`. Scored on 1000 fresh inputs: RMSE to the true function, in standard deviations of that function; negative
log likelihood and coverage of the central 95 % interval of noisy observations there. Compiled programs are released before
every fit: `seconds` (wall) and `cpu_seconds` include compilation.

    python experiments/small_regression.py             odd functions; resumes; rows go to results/small_regression.csv
    python experiments/small_regression.py --report    even functions
    python experiments/small_regression.py --quick
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import common
import jax
import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import prodssm as ps

NAME = "small_regression"
TEST = 1000  # fresh inputs
ROWS = (40, 80, 200)
CHOOSE, REPORT = (1, 3, 5), (0, 2, 4)  # seeds


@dataclass(frozen=True)
class Function:
    """Inputs uniform in a box, a true function of them, and the standard deviation of the noise at each."""

    name: str
    inputs: int
    box: tuple[float, float]
    truth: Callable[[np.ndarray], np.ndarray]
    noise: Callable[[np.ndarray], Any]

    def draw(self, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inputs, true values, observations."""
        x = rng.uniform(*self.box, (rows, self.inputs))
        truth = self.truth(x)
        return x, truth, truth + self.noise(x) * rng.normal(size=rows)


def _friedman(x: np.ndarray) -> np.ndarray:
    return 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]


def _peaks(x: np.ndarray) -> np.ndarray:
    first, second = x.T
    return np.exp(-((first - 1) ** 2) - second**2) - np.exp(-((first + 1) ** 2) - (second - 0.5) ** 2)


def _saturating(x: np.ndarray) -> np.ndarray:
    return np.tanh(2 * x[:, 0] - x[:, 1]) + x[:, 2] * x[:, 3] + 0.5 * np.cos(2 * x[:, 4])


FUNCTIONS = {
    1: Function("damped wave", 1, (-3, 3), lambda x: np.exp(-(x[:, 0] ** 2) / 4) * np.sin(3 * x[:, 0]), lambda x: 0.1),
    2: Function("noisy sine", 1, (-2, 2), lambda x: np.sin(2 * x[:, 0]), lambda x: 0.1),
    3: Function("two peaks", 2, (-2, 2), _peaks, lambda x: 0.05),
    4: Function("wave in two", 2, (-2, 2), lambda x: np.sin(2 * x[:, 0]) + x[:, 0] * np.cos(x[:, 1]), lambda x: 0.1),
    5: Function("saturating in five", 5, (-1, 1), _saturating, lambda x: 0.1),
    6: Function("Friedman 1", 5, (0, 1), _friedman, lambda x: 1.0),
    7: Function("linear in three", 3, (-1, 1), lambda x: x @ [1.0, -2.0, 0.5], lambda x: 0.3),
    8: Function("linear in five", 5, (-1, 1), lambda x: x @ [1.0, 1.0, -1.0, 0.5, 0.0], lambda x: 0.3),
    9: Function("noise grows", 1, (0, 4), lambda x: x[:, 0] * np.sin(2 * x[:, 0]), lambda x: 0.05 + 0.15 * x[:, 0]),
    10: Function(
        "noise in the middle", 1, (-3, 3), lambda x: np.tanh(x[:, 0]), lambda x: 0.05 + 0.25 * np.exp(-(x[:, 0] ** 2))
    ),
}


@dataclass(frozen=True)
class Spec:
    """One row."""

    function: int
    rows: int
    seed: int
    model: str


def specs(*, report: bool) -> list[Spec]:
    """All rows of one half."""
    numbers, seeds = [n for n in FUNCTIONS if n % 2 == (not report)], REPORT if report else CHOOSE
    return [Spec(n, rows, seed, model) for n in numbers for rows in ROWS for seed in seeds for model in ("gp", "ours")]


def run(spec: Spec, **settings: Any) -> dict[str, Any]:
    """One row of the table."""
    function = FUNCTIONS[spec.function]
    x, _, y = function.draw(spec.rows, np.random.default_rng((spec.function, spec.seed)))
    test, truth, observed = function.draw(TEST, np.random.default_rng((spec.function, spec.seed, 1)))
    release_programs()
    begin = time.monotonic(), time.process_time()
    model: Any = gaussian_process() if spec.model == "gp" else ps.DeepStochasticRegressor(random_state=spec.seed, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kernel parameters at their bounds
        mean, std = model.fit(x, y).predict(test, return_std=True)
    spent = time.monotonic() - begin[0], time.process_time() - begin[1]
    z = (observed - mean) / std
    return asdict(spec) | {
        "rmse": f"{np.sqrt(((mean - truth) ** 2).mean()) / truth.std():.4f}",
        "nll": f"{(0.5 * z**2 + np.log(std) + 0.5 * np.log(2 * np.pi)).mean():.4f}",
        "coverage": f"{(np.abs(z) < 1.96).mean():.3f}",
        "seconds": f"{spent[0]:.1f}",
        "cpu_seconds": f"{spent[1]:.1f}",
        "commit": common.commit(),
    }


def gaussian_process() -> Any:
    """The rival."""
    process = GaussianProcessRegressor(RBF() + WhiteKernel(), normalize_y=True, n_restarts_optimizer=9, random_state=0)
    return make_pipeline(StandardScaler(), process)


def release_programs() -> None:
    """Forget what earlier rows have compiled."""
    most = ps.keep_programs(1)
    ps.keep_programs(most)
    jax.clear_caches()


def tables() -> dict[str, str]:
    """Both halves."""
    return {f"{NAME} choose": table(report=False), f"{NAME} report": table(report=True)}


def table(*, report: bool) -> str:
    """Means over seeds of one half, next to the Gaussian process."""
    found: dict[tuple[int, int, str], list[dict[str, str]]] = {}
    for row in common.rows(NAME):
        found.setdefault((int(row["function"]), int(row["rows"]), row["model"]), []).append(row)
    body, ratios = [], []
    for number, rows in dict.fromkeys((spec.function, spec.rows) for spec in specs(report=report)):
        both = [found.get((number, rows, model), []) for model in ("ours", "gp")]
        if not all(both):
            continue
        ours, theirs = ({name: np.mean([float(row[name]) for row in half]) for name in MEANS} for half in both)
        ratios.append(ours["rmse"] / theirs["rmse"])
        cells = [f"{part[name]:.3f}" for name in MEANS[:3] for part in (ours, theirs)]
        body.append([FUNCTIONS[number].name, rows, *cells, f"{ours['seconds']:.0f}", f"{ours['cpu_seconds']:.0f}"])
    head = ["function", "rows", "RMSE", "GP", "NLL", "GP", "coverage", "GP", "seconds", "CPU seconds"]
    text = common.markdown(head, body)
    if ratios:
        text += f"\n\nRMSE over that of the Gaussian process: median {np.median(ratios):.2f}, largest {max(ratios):.2f}."
    return text


MEANS = ("rmse", "nll", "coverage", "seconds", "cpu_seconds")


def main() -> None:
    """Run the rows that are missing, print the table."""
    parser = common.arguments(__doc__)
    parser.add_argument("--report", action="store_true", help="the even functions")
    options = parser.parse_args()
    if options.quick:
        common.smoke(run, QUICK, options)
        return
    common.make_rows(NAME, run, specs(report=options.report), options)
    common.say(table(report=options.report))


SMOKE = {"n_estimators": 1, "recipe": ps.Recipe(iterations=2, prior_weight=0.3)}
QUICK = [(Spec(1, 40, 1, "gp"), {}), (Spec(1, 40, 1, "ours"), SMOKE)]

if __name__ == "__main__":
    main()
