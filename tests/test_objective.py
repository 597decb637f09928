"""The hyper-prior is minus a divergence from N(0, 1), up to a constant per weight."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from oracles import array, close

import prodssm as ps
from prodssm.inference import Finder
from prodssm.objective import log_evidence, log_hyper_prior, log_posterior
from prodssm.series import stack


def small_model(weights="local"):
    return ps.StateSpaceModel(
        initial=ps.Gaussian([0.0], [[1.0]]),
        transition=ps.Network.mlp((1, 5, 1), key=jr.key(0), log_var=-3.0),
        process_noise=jnp.array([0.1]),
        measurement_noise=jnp.array([0.2]),
        weights=weights,
    )


def test_the_hyper_prior_is_minus_the_divergence_from_the_standard_normal():
    net = ps.Network.mlp((2, 3, 1), key=jr.key(1), log_var=-1.5)
    m, v = np.asarray(net.weights.mean, float), np.asarray(net.weights.var, float)
    divergence = 0.5 * (v + m**2 - 1 - np.log(v)).sum()
    assert close(log_hyper_prior(net), -divergence - m.size / 2)


def test_certain_weights_have_no_prior():
    assert log_hyper_prior(ps.Network.mlp((2, 3, 1), uncertain=False, key=jr.key(1))) == 0.0


def test_the_first_observation_is_not_scored():
    model, series = small_model(), ps.Series(array([0.1, 0.5, -0.2, 0.3]))
    whole = ps.filter_states(model, series)
    assert close(log_evidence(Finder(model, {}, "moments"), series.frames), whole.log_evidence[1:].sum())


def test_a_batch_is_scaled_up_to_all_data():
    model = small_model()
    series = [ps.Series(array([0.1, 0.5, -0.2, 0.3])), ps.Series(array([0.4, 0.1]))]
    prior = log_hyper_prior(model.transition)
    options = {"method": "moments", "options": {}, "prior_weight": 0.5}
    one = log_posterior(model, stack(series[:1]), share=0.5, **options)
    evidence = ps.filter_states(model, series[0]).log_evidence[1:].sum()
    assert close(one, 2 * evidence + 0.5 * prior)
