"""One trained state-space model together with the scaling of its data: inference in the units of the data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array
from sklearn.exceptions import NotFittedError

from prodssm._compilation import bucket, compiled, pad
from prodssm._validation import require_answer
from prodssm.beliefs.gaussian import Belief, Gaussian
from prodssm.data.layout import Layout
from prodssm.data.scaling import DataScaling, Standardiser
from prodssm.data.series import Series, Values, first_steps, part_of
from prodssm.estimators.results import Decomposition, Prediction, Stream, StreamStep, Transition
from prodssm.methods.base import Method
from prodssm.methods.moments import Moments
from prodssm.models.components import Group, predictive
from prodssm.models.decomposition import decompose
from prodssm.models.filtering import Beliefs, Outputs, Recursion, checked_input, filter_chunk
from prodssm.models.forecasting import Forecast, forecast, forecast_with, future_inputs, observed, one_step_ahead
from prodssm.models.panels import forecast_origins, forecast_panel
from prodssm.models.simulation import sample_futures, simulate
from prodssm.models.state_space import StateSpaceModel, require_room
from prodssm.scoring.diagnostics import GaussianCheck, compare_with_samples
from prodssm.training.history import History


@dataclass(frozen=True)
class FittedModel:
    """A trained model and everything that answers need.

    Attributes:
        ssm: The model, in standardised units.
        scaling: The scaling of the data.
        method: How channels are found.
        seed: Seed of all randomness.
        history: What training recorded.
        layout: The columns of the data frame that it was fitted to, if it was one.
        reached: The belief behind the part of a long series that was read before, and how many time steps that has.
    """

    ssm: StateSpaceModel
    scaling: DataScaling
    method: Method
    seed: int
    history: History = field(default_factory=History, repr=False)
    layout: Layout | None = None
    reached: tuple[Belief, Any] | None = None

    @cached_property
    def recursion(self) -> Recursion:
        """The model with its method; made once, because a stream asks for it at every step."""
        return Recursion(self.ssm, self.method, *(self.reached or ()))

    def begun(self) -> "FittedModel":
        """The model before a long series that is read in chunks."""
        return replace(self, reached=(_initial_belief(self.recursion), np.asarray(0, np.int32)))

    def filter_on(self, series: Series) -> tuple["FittedModel", Beliefs]:
        """The model behind the next chunk of a long series, and filtered beliefs about it in the units of the data."""
        if series.time is not None:
            self.scaling.transform_dt(float(series.dt[-1]))  # the step to the next chunk must be regular, too, where all must
        standard = checked_input(self.ssm, self.scaling.transform_series(series), self.method)[0]
        recursion, found = filter_chunk(self.recursion, standard)
        behind = replace(self, reached=(recursion.start, recursion.begun))
        return behind, self._in_units(found, series, standard)

    @property
    def components(self) -> int:
        """Number of Gaussians in the belief about the state."""
        return self.method.count if isinstance(self.method, Moments) else 1

    @property
    def state_scaling(self) -> Standardiser:
        """The scaling of the state: that of the data if the emission is the identity, else none."""
        if self.ssm.emission is None:
            return self.scaling.y
        return Standardiser.identity(self.ssm.x_size, self.ssm.dtype)

    def infer(self, function: Callable[..., Sequence[Beliefs]], series: Sequence[Series]) -> list[Beliefs]:
        """Filtered or smoothed beliefs about each of several series, in the units of the data."""
        standard = [self.scaling.transform_series(each) for each in series]
        found = function(self.ssm, standard, self.method)
        return [self._in_units(*each) for each in zip(found, series, standard, strict=True)]

    def _in_units(self, found: Beliefs, series: Series, standard: Series) -> Beliefs:
        log_evidence = self.scaling.y.inverse_log_prob(found.log_evidence, ~np.isnan(series.y))
        outputs = partial(self._outputs, found.mean, found.cov, standard.u)
        mean, cov = self._state_moments(found.mean, found.cov)
        mixture = None if found.mixture is None else self._mixture_in_units(found.mixture)
        return replace(found, mean=mean, cov=cov, log_evidence=log_evidence, mixture=mixture, _outputs=outputs)

    def _mixture_in_units(self, mixture: Any) -> Any:
        means, covs = self._state_moments(mixture.means, mixture.covs)
        return eqx.tree_at(lambda each: (each.means, each.covs), mixture, (means, covs))

    def _outputs(self, mean: Values, cov: Values, u: Values | None) -> Outputs:
        """Observations without noise at beliefs about the state in standardised units, in the units of the data."""
        room, count = bucket(len(mean)), len(mean)
        padded = [None if part is None else pad(np.asarray(part), room, 1.0) for part in (mean, cov, u)]
        g, seen = jax.tree.map(lambda part: np.asarray(part)[:count], _emitted(self.recursion, *padded))
        likelihood, scaling = self.ssm.likelihood, self.scaling.y
        about = None if likelihood.gaussian else Group.of_beliefs(g, likelihood, scaling)
        return Outputs(scaling.inverse(seen.mean), scaling.inverse_cov(seen.cov), about=about)

    def forecast(self, series: Sequence[Series], steps: int, u: Sequence[Any], dt: Sequence[Any]) -> list[Prediction]:
        """Beliefs about the observations that follow each of several series; controls and time steps are in its units."""
        standard = [self.scaling.transform_series(each) for each in series]
        future = [self.transform_future(*each) for each in zip(u, dt, strict=True)]
        us, dts = zip(*future, strict=True)
        if self.reached is None:
            found = forecast_panel(self.ssm, standard, steps, self.method, u=us, dt=dts)
        else:
            found = [forecast_with(self.recursion, standard[0], steps, us[0], dts[0])]
        return [self._prediction(each, past, *ahead) for each, past, ahead in zip(found, standard, future, strict=True)]

    def forecast_at(self, series: Series, origins: Sequence[int], steps: int) -> list[Prediction]:
        """Beliefs about the observations of a series from each origin on, given those before."""
        standard = self.scaling.transform_series(series)
        found = forecast_origins(self.ssm, standard, origins, steps, self.method)
        u = [None if standard.u is None else standard.u[n : n + steps] for n in origins]
        dt = [standard.dt[n - 1 : n - 1 + steps] for n in origins]
        pasts = [part_of(standard, 0, n) for n in origins]
        return [self._prediction(*each) for each in zip(found, pasts, u, dt, strict=True)]

    def _prediction(self, found: Forecast, standard: Series, u: Any, dt: Any) -> Prediction:
        steps = len(found.mean)
        parts = partial(self._decompose, standard, steps, u, dt)
        draw = partial(self._sample, standard, steps, u, dt)
        mean, cov = self.scaling.y.inverse(found.mean), self.scaling.y.inverse_cov(found.cov)
        states = self._state_moments(found.state_mean, found.state_cov)
        components = predictive(found.about, self.ssm.likelihood, self.scaling.y)
        return Prediction(mean, cov, *states, parts, self.layout, _draw=draw, components=components)

    def _sample(self, standard: Series, steps: int, u: Any, dt: Any, count: int, key: Any) -> np.ndarray:
        """Paths of observations that follow a standardised series, in the units of the data."""
        ahead = future_inputs(self.ssm, standard, steps, u, dt)
        found = sample_futures(self.recursion, standard.record, ahead, key=key, samples=bucket(count))
        return np.asarray(self.scaling.y.inverse(np.asarray(found)[:count]), float)

    def one_step_ahead(self, series: Series) -> Forecast:
        """Beliefs about each observation given those before it, in the units of the data."""
        found = one_step_ahead(self.ssm, self.scaling.transform_series(series), self.method)
        mean, cov = self.scaling.y.inverse(found.mean), self.scaling.y.inverse_cov(found.cov)
        return Forecast(mean, cov, *self._state_moments(found.state_mean, found.state_cov))

    def measurement_variance(self, steps: int) -> np.ndarray:
        """Variance of the measurement noise at each step of a forecast, in the units of the data."""
        if not self.ssm.likelihood.constant_noise:
            raise ValueError(
                f"decompose of several models needs measurement noise that is the same everywhere, not that of "
                f"{type(self.ssm.likelihood).__name__}; use n_estimators=1"
            )
        output = Gaussian.certain(jnp.zeros(self.ssm.y_size, self.ssm.dtype))
        variance = np.asarray(self.ssm.likelihood.conditional_var(output), float) * np.asarray(self.scaling.y.scale, float) ** 2
        return np.broadcast_to(variance, (steps, variance.size))

    def _decompose(self, standard: Series, steps: int, u: Any, dt: Any) -> Decomposition:
        found = decompose(self.recursion, standard.record, future_inputs(self.ssm, standard, steps, u, dt))
        square = np.asarray(self.scaling.y.scale, float) ** 2
        parts = (found.epistemic, found.aleatoric, found.measurement)
        return Decomposition(*(np.asarray(part, float) * square for part in parts))

    def transition(self, x: np.ndarray, u: Any) -> Transition:
        """Belief about the next state f(x, w), or x + f(x, w) for a residual model, without process noise."""
        scaling = self.state_scaling
        states = scaling.transform(x.astype(scaling.mean.dtype))
        controls = None if u is None else self.scaling.transform_controls(u)
        if controls is not None and len(controls) != len(states):
            raise ValueError(f"u must have {len(states)} rows like x, got {len(controls)}")
        room = bucket(len(states))
        controls = None if controls is None else pad(np.asarray(controls), room)
        found = _transition(self.recursion, pad(np.asarray(states), room), controls)
        mean, var = (np.asarray(part)[: len(states)] for part in found)
        require_answer("the next state", mean, var)
        return Transition(scaling.inverse(mean), var * scaling.scale**2)

    def simulate(self, steps: int, key: Any, u: Any, dt: Any) -> tuple[Values, Values]:
        """States and observations drawn from the model."""
        u, dt = self.transform_future(u, dt)
        states, y = simulate(self.ssm, steps, key=key, u=u, dt=dt)
        return self.state_scaling.inverse(states), self.scaling.y.inverse(y)

    def check(self, standard: Series, steps: int, samples: int) -> GaussianCheck:
        """Compare the forecast of the last steps of a standardised series with futures sampled from the model."""
        cut = max(len(standard) - steps, 2)
        past = first_steps(standard, cut)
        u = None if standard.u is None else standard.u[cut:]
        dt = standard.dt[cut - 1 :][:steps] if self.ssm.residual else None
        found = forecast(self.ssm, past, steps, self.method, u=u, dt=dt)
        ahead = future_inputs(self.ssm, past, steps, u, dt)
        futures = sample_futures(self.recursion, past.record, ahead, key=jr.key(self.seed + 1), samples=samples)
        mean, std, futures = (np.asarray(part, float) for part in (found.mean, found.std, futures))
        return compare_with_samples(mean, std, futures, predictive(found.about, self.ssm.likelihood), self.components)

    def start(self) -> Stream:
        """A stream before its first observation."""
        require_room(self.method, self.ssm.x_size, 1, self.ssm.dtype.itemsize)
        return Stream(_initial_belief(self.recursion), np.asarray(0, np.int32))

    def step(self, stream: Stream, y: np.ndarray, u: np.ndarray | None, dt: np.ndarray) -> tuple[Stream, StreamStep]:
        """The stream after one observation, and what is known then."""
        scalings = self.scaling.y, self.scaling.u, self.state_scaling
        stream, found = _stream_step(self.recursion, *scalings, stream, y, u, dt)
        moments, about = found
        require_answer("the stream", *moments, advice="the learned system is unstable; train it anew")
        about = jax.tree.map(lambda part: np.asarray(part)[None], about)
        return stream, StreamStep(*moments, components=predictive(about, self.ssm.likelihood, self.scaling.y))

    def transform_future(self, u: Any, dt: Any) -> tuple[Any, Any]:
        """Future controls and time steps in standardised units."""
        absent = u is None or (np.size(u) == 0 and self.scaling.u is not None)
        return None if absent else self.scaling.transform_controls(u), (
            None if dt is None else self.scaling.transform_time_steps(dt)
        )

    def _state_moments(self, mean: Values, cov: Values) -> tuple[Values, Values]:
        return self.state_scaling.inverse(mean), self.state_scaling.inverse_cov(cov)


def require_fit(model: Any) -> None:
    """Raise unless an estimator has been fitted."""
    if not hasattr(model, "members_"):
        raise NotFittedError("this ProDSSM is not fitted yet: call fit(data) first")


@compiled
def _initial_belief(recursion: Recursion) -> Belief:
    return recursion.initial_belief()


@compiled
def _emitted(recursion: Recursion, mean: Array, cov: Array, u: Array | None) -> tuple[Gaussian, Gaussian]:
    """Beliefs about g and, by its moments, about E[y | g]."""

    def at(mean, cov, u, t):
        g = recursion.emit(Gaussian(mean, cov), u, t)
        return g, recursion.model.likelihood.expected(g)

    times = jnp.arange(mean.shape[0], dtype=jnp.int32)
    return jax.vmap(at, in_axes=(0, 0, None if u is None else 0, 0))(mean, cov, u, times)


@compiled
def _transition(recursion: Recursion, states: Array, controls: Array | None) -> tuple[Array, Array]:
    model = recursion.model
    network = model.transition.at_mean() if model.weights == "point" else model.transition
    # At a certain state and for one hidden layer moment matching is exact, whatever the filter uses.
    method = recursion.method if isinstance(recursion.method, Moments) else Moments()

    def at(x, u):
        _, found = method.propagate(network, Gaussian.certain(x), u, model.link(x, u, jnp.ones((), model.dtype)))
        return found.mean, found.var

    return jax.vmap(at)(states, controls) if controls is not None else jax.vmap(lambda x: at(x, None))(states)


@compiled
def _stream_step(recursion: Recursion, y_scaling, u_scaling, x_scaling, stream: Stream, y, u, dt) -> tuple[Stream, tuple]:
    control = None if u is None else u_scaling.transform(u)
    filtered, _ = recursion.update(stream.belief, y_scaling.transform(y), control, stream.count)
    _, following = recursion.move(filtered, control, dt, stream.count)
    # The next control is not known yet: with direct feedthrough the prediction is for one that stays as it is.
    seen, about = observed(recursion.model.likelihood, recursion.emit(following, control, stream.count + 1))
    found = (
        y_scaling.inverse(seen.mean),
        y_scaling.inverse_cov(seen.cov),
        x_scaling.inverse(filtered.mean),
        x_scaling.inverse_cov(filtered.cov),
    )
    return Stream(following, stream.count + 1), (found, about)
