"""prodssm: learn unknown dynamics from time series and say how sure you are, without sampling."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from prodssm import datasets as datasets
from prodssm import evaluation as evaluation
from prodssm._compilation import enable_compilation_cache as enable_compilation_cache
from prodssm._compilation import keep_programs as keep_programs
from prodssm.beliefs.channel import Channel as Channel
from prodssm.beliefs.channel import compose as compose
from prodssm.beliefs.gaussian import Belief as Belief
from prodssm.beliefs.gaussian import Gaussian as Gaussian
from prodssm.beliefs.joint import JointGaussian as JointGaussian
from prodssm.beliefs.mixture import GaussianMixture as GaussianMixture
from prodssm.beliefs.weights.dense import DenseWeights as DenseWeights
from prodssm.beliefs.weights.diagonal import DiagonalWeights as DiagonalWeights
from prodssm.beliefs.weights.low_rank import LowRankWeights as LowRankWeights
from prodssm.data import frames as frames
from prodssm.data.long import LongSeries as LongSeries
from prodssm.data.series import Series as Series
from prodssm.evaluation import plots as plots
from prodssm.methods.base import Method as Method
from prodssm.methods.base import channel as channel
from prodssm.methods.linearised import Linearised as Linearised
from prodssm.methods.moments import Moments as Moments
from prodssm.methods.sampled import Sampled as Sampled
from prodssm.methods.unscented import Cubature as Cubature
from prodssm.methods.unscented import Unscented as Unscented
from prodssm.models.filtering import filter_states as filter_states
from prodssm.models.forecasting import forecast as forecast
from prodssm.models.likelihoods.base import Likelihood as Likelihood
from prodssm.models.likelihoods.bernoulli import Bernoulli as Bernoulli
from prodssm.models.likelihoods.gaussian import GaussianLikelihood as GaussianLikelihood
from prodssm.models.likelihoods.poisson import Poisson as Poisson
from prodssm.models.likelihoods.scalar import ScalarLikelihood as ScalarLikelihood
from prodssm.models.likelihoods.student_t import StudentT as StudentT
from prodssm.models.simulation import simulate as simulate
from prodssm.models.smoothing import smooth_states as smooth_states
from prodssm.models.state_space import StateSpaceModel as StateSpaceModel
from prodssm.networks.activations import ACTIVATIONS as ACTIVATIONS
from prodssm.networks.activations import Activation as Activation
from prodssm.networks.activations import from_function as from_function
from prodssm.networks.base import Function as Function
from prodssm.networks.known import Known as Known
from prodssm.networks.known import Sum as Sum
from prodssm.networks.layers import Linear as Linear
from prodssm.networks.network import Network as Network
from prodssm.scoring import metrics as metrics
from prodssm.training.devices import use_mesh as use_mesh
from prodssm.training.history import StopReason as StopReason
from prodssm.training.recipe import Recipe as Recipe
from prodssm.training.series_task import train as train

if TYPE_CHECKING:
    from prodssm.estimators.persistence import load as load
    from prodssm.estimators.prodssm import ProDSSM as ProDSSM
    from prodssm.estimators.regressor import DeepStochasticRegressor as DeepStochasticRegressor

__version__ = "0.1.0"

# scikit-learn takes longer to import than JAX (it imports scipy.stats and pandas), so the estimators wait for their first use.
_ESTIMATORS = {
    "DeepStochasticRegressor": "prodssm.estimators.regressor",
    "ProDSSM": "prodssm.estimators.prodssm",
    "load": "prodssm.estimators.persistence",
}


def __getattr__(name: str) -> Any:
    if name not in _ESTIMATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_ESTIMATORS[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_ESTIMATORS})
