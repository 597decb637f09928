"""How good a model is: backtests and plots."""

from prodssm.evaluation.backtesting import Backtest as Backtest
from prodssm.evaluation.backtesting import backtest as backtest
