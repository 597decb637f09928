"""The prose of docs/benchmarks.md, in which `benchmark_tables.py` fills the tables."""

TEXT = """# Benchmarks

Written by `scripts/benchmark_tables.py` from what `make bench` last measured (`benchmarks/results/`). Ratios are of times
measured in one run, on one core unless `--all-cores` is given: on two cores the start of a second thread takes longer than a
matrix product of 128 by 128, which dominates the small sizes. `python benchmarks/before_after.py --before PATH` compares the
times of another checkout with those of this one.

## One step (`benchmarks/one_step.py`)

The runtime figure of the paper: D = state = observation = hidden width, one hidden layer in transition and emission. Monte
Carlo with S = D particles samples weights for every particle, or is given them ("without weight sampling"), or samples layer
outputs instead, which is the cheapest Monte Carlo there is ("cheapest"). "Matrix products" is a chain of eight products of D
by D matrices, as many as moment matching needs. Below D = 128 a call in JAX does sixteen steps, as a filter does many: the
dispatch overhead of a call exceeds such a step. With one step per call (`--single`) the ratios at small D are those of the
overhead as much as of the steps, and depend on the machine.

{one_step}

## Truncation order (`benchmarks/covariance_order.py`)

Absolute error of the covariance of two ReLUs of unit variance, by correlation; relative error of the output covariance of
random networks; cost for 16 layers of 50 units. The default order is 4, the lowest whose error is below that of the DVI formula
in every column, and 8 for a scalar state, where each order adds only one vector per layer.

{covariance_order}

## Equal accuracy (`benchmarks/equal_accuracy.py`)

How many samples the cheapest Monte Carlo needs for the error of moment matching, in the mean and in the covariance. The cost
ratio is its cost with the same error in both, as a multiple of the cost of moment matching; the easier ratio is its cost with
the same error in the one that needs fewer samples. (The easier ratio was the first criterion of this benchmark. One contractive
network with two hidden layers does not reach 100 there, as its row shows.) `gain` scales the weights: below one the network is
contractive. Where the error of moment matching is below the noise of the reference (2^17 samples), that noise takes its place,
so that the ratio is a lower bound; such an error is shown as 0.

{equal_accuracy}

The Gaussian assumption fails in two cases, at any order of truncation. For expanding networks the first step is accurate and
later ones are not. With two hidden layers the pre-activations of the second are not Gaussian, and the covariance after a single
step from a wide belief has an error of several percent (6-30-30-6 above). Compare long forecasts of such systems with
`method="sampled"`, or call `model.check`.

## Filter and smoother (`benchmarks/filter.py`)

Ours and those of dynamax, cuthbert and filterpy on the same fixed networks, after all of them agreed on a linear model. None of
the others supports uncertain weights, so these are compared with an unscented filter on the state augmented by the weights.

{filter}

## Training (`benchmarks/train.py`)

One iteration on series of 120 observations of the kink, against the same formulas in eager PyTorch after both agreed on loss
and gradient.

{train}

## A long stream (`benchmarks/stream.py`)

Repeated calls of `model.step`. Wall-clock and CPU times are per call since the row before; the first call, which compiles, is
left out. Memory is the resident memory of the process, compilations are counted from the start of the stream. Then a million
steps of `filter_states` in one call: the number of non-finite values, and the lowest eigenvalue of all covariances relative to
the trace, of the state at every step and of global weights after the last.

{stream}

## Global weights (`benchmarks/global.py`)

One gradient of the filter's likelihood of 300 steps (six states, two hidden layers of 30, 50 outputs, 1,326 weights) and of a
minibatch of 32 rows of Boston's shape, order 1, as multiples of the same with local weights. The error is that of the log
likelihood against a dense covariance of all weights, in double precision. Monte Carlo samples the global weights a number of
times and filters the whole series given each draw; in the regression it propagates a number of particles. The measured ratio of
the filter is close to its bound: the time of large matrix products on a shared machine varies from hour to hour.

{global}

## Mixtures (`benchmarks/mixture.py`)

CPU time of a step with `Moments(components=..., splits=...)`, random networks with local weights (1-50-1, 2-30-2, 4-30-4), as
multiples of one Gaussian with its default order. Then the kink with a trained 1-50-1 network: microseconds of a filter over 120
time steps or a forecast of 20, and the error, a Cramér distance from the filter on a grid of 600 states, which in one dimension
is exact up to its resolution. That of n samples is about the root of .564 / n. Particles sample the outputs of layers. The
claim compares with as many particles as take the same time, between the measured numbers. Forecasts with networks of several
seeds: the distance of eight components, and its largest ratio to that of one Gaussian. The order of the covariance of
hidden units: the distance of a forecast (r = 0.08), and the time as a multiple of that of order {default_order}, the default of
mixtures. At last the gradient of the evidence of 10,000 steps in all that is learned, with eight components.

{mixture}

## Compilation (`benchmarks/compile.py`)

A backtest that refits over 50 histories of 150 to 299 points and forecasts ten steps; forecasts of 40 growing histories; fits
of 300 hidden sizes in one process and its memory maps; batched triangular solves beside two busy processes and a thousand fits
of a model with 50 outputs there; the time from a signal to the return of a fit; a fit and a forecast in a new process. "First"
is the compilation of one fit and forecast, in seconds.

{compile}

## Import (`benchmarks/import_time.py`)

`import prodssm` against importing JAX and equinox alone, with byte code that is already there. The estimators and SciPy are
imported when they are first used; "before" is the package that imported them at once.

{import_time}
"""
