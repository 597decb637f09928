"""prodssm: learn unknown dynamics from time series and say how sure you are, without sampling."""

from prodssm import datasets as datasets
from prodssm import frames as frames
from prodssm import metrics as metrics
from prodssm import mixture as mixture
from prodssm import plots as plots
from prodssm.activations import ACTIVATIONS as ACTIVATIONS
from prodssm.activations import Activation as Activation
from prodssm.activations import from_function as from_function
from prodssm.estimators import ProDSSM as ProDSSM
from prodssm.estimators import load as load
from prodssm.gaussian import Channel as Channel
from prodssm.gaussian import Gaussian as Gaussian
from prodssm.gaussian import JointGaussian as JointGaussian
from prodssm.gaussian import compose as compose
from prodssm.inference import filter_states as filter_states
from prodssm.inference import forecast as forecast
from prodssm.inference import simulate as simulate
from prodssm.inference import smooth_states as smooth_states
from prodssm.layers import Linear as Linear
from prodssm.methods import channel as channel
from prodssm.model import StateSpaceModel as StateSpaceModel
from prodssm.network import Network as Network
from prodssm.regressor import DeepStochasticRegressor as DeepStochasticRegressor
from prodssm.series import Series as Series
from prodssm.training import Recipe as Recipe
from prodssm.training import train as train
from prodssm.weights import DenseWeights as DenseWeights
from prodssm.weights import DiagonalWeights as DiagonalWeights
from prodssm.weights import LowRankWeights as LowRankWeights

__version__ = "0.1.0"
