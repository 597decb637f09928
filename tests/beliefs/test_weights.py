"""Every structure of a weight covariance answers as the matrix that it stands for."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import SampleMoments, array, assert_cov_matches, assert_mean_matches, close, random_joint_cov, smallest_eigenvalue

import prodssm as ps
from prodssm.beliefs.weights.base import layer_slice
from prodssm.beliefs.weights.cross import LayerCross, StepwiseCross, StepwiseLayerCross

SHAPES = ((3, 2), (2, 4))
RNG = np.random.default_rng(1)
MEAN = RNG.normal(size=14)
PRIOR = RNG.uniform(0.2, 1.0, size=14)
FACTOR = random_joint_cov(2, 2, PRIOR, rank=3)[1]
COV = np.diag(PRIOR) - FACTOR @ FACTOR.T

# A new structure joins by one line: the belief and the covariance that it stands for.
STRUCTURES = {
    "diagonal": (ps.DiagonalWeights(array(MEAN), array(PRIOR), SHAPES), np.diag(PRIOR)),
    "low rank": (ps.LowRankWeights(array(MEAN), array(PRIOR), array(FACTOR), SHAPES), COV),
    "dense": (ps.DenseWeights(array(MEAN), array(COV), SHAPES), COV),
}


@pytest.fixture(params=list(STRUCTURES))
def belief(request):
    """A belief and its covariance."""
    return STRUCTURES[request.param]


# ---------------------------------------------------------------- linear algebra


def test_covariance_and_variances_are_those_of_the_formula(belief):
    weights, cov = belief
    assert close(weights.cov(), cov)
    assert close(weights.var, np.diag(cov))


def test_times_multiplies_rows_by_the_covariance(belief):
    weights, cov = belief
    rows = RNG.normal(size=(3, 14))
    assert close(weights.times(array(rows)), rows @ cov)


def test_solve_multiplies_rows_by_the_inverse_covariance(belief):
    weights, cov = belief
    rows = RNG.normal(size=(3, 14))
    assert close(weights.solve(array(rows)), rows @ np.linalg.inv(cov), scale=10)


def test_weights_without_variance_count_as_zero_in_a_solve():
    prior = np.where(np.arange(14) < 3, 0.0, PRIOR)
    factor = np.where(prior[:, None] > 0, FACTOR, 0.0)
    rows = RNG.normal(size=(2, 14))
    inner = np.diag(prior[3:]) - factor[3:] @ factor[3:].T
    for weights, cov in (
        (ps.DiagonalWeights(array(MEAN), array(prior), SHAPES), np.diag(prior[3:])),
        (ps.LowRankWeights(array(MEAN), array(prior), array(factor), SHAPES), inner),
    ):
        found = weights.solve(array(rows))
        assert close(found[:, :3], np.zeros((2, 3)))
        assert close(found[:, 3:], rows[:, 3:] @ np.linalg.inv(cov), scale=10)


def test_a_layer_is_its_matrix_of_weights_and_biases_row_by_row(belief):
    weights, _ = belief
    assert close(weights.layer_mean(0), MEAN[:6].reshape(3, 2))
    assert close(weights.layer_mean(1), MEAN[6:].reshape(2, 4))
    assert weights.slice(1) == layer_slice(SHAPES, 1) == slice(6, 14)


def test_samples_have_the_mean_and_covariance_of_the_belief(belief):
    weights, cov = belief
    samples = jax.jit(jax.vmap(lambda key: weights.sample(key=key)))(jr.split(jr.key(0), 200_000))
    moments = SampleMoments.of(np.asarray(samples, float), np.asarray(samples, float))
    assert_mean_matches(MEAN, moments)
    assert_cov_matches(cov, moments, sigmas=5.5)


# ---------------------------------------------------------------- observations


def test_a_downdate_moves_the_mean_and_subtracts_covariance(belief):
    weights, cov = belief
    shift, removed = RNG.normal(size=14), 0.2 * np.sqrt(PRIOR)[:, None] * np.linalg.qr(RNG.normal(size=(14, 2)))[0]
    after = weights.downdate(array(shift), array(removed))
    assert close(after.mean, MEAN + shift)
    assert close(after.cov(), cov - removed @ removed.T)
    assert close(after.var, np.diag(cov - removed @ removed.T))
    assert (np.asarray(after.var) <= np.asarray(weights.var)).all()
    assert smallest_eigenvalue(after.cov()) > -1e-6
    assert after.shapes == SHAPES


def test_two_downdates_equal_one_of_both(belief):
    weights, _ = belief
    removed = 0.2 * np.sqrt(PRIOR)[:, None] * np.linalg.qr(RNG.normal(size=(14, 3)))[0]
    none = jnp.zeros(14)
    twice = weights.downdate(none, array(removed[:, :1])).downdate(none, array(removed[:, 1:]))
    assert close(twice.cov(), weights.downdate(none, array(removed)).cov())


def test_beliefs_pass_through_jit_and_gradients(belief):
    weights, cov = belief

    @jax.jit
    def total(b):
        return b.times(jnp.ones((1, 14))).sum() + b.var.sum()

    assert close(total(weights), cov.sum() + np.trace(cov))
    for leaf in jax.tree.leaves(jax.grad(total)(weights)):
        assert jnp.isfinite(leaf).all()


# ---------------------------------------------------------------- moments of a layer


def layer_cov(cov, l):
    """Covariance of the weights of layer l: output by input by output by input."""
    part = layer_slice(SHAPES, l)
    return cov[part, part].reshape(*SHAPES[l], *SHAPES[l])


@pytest.mark.parametrize("l", [0, 1])
def test_a_contraction_sums_covariances_of_weights_times_moments_of_inputs(belief, l):
    weights, cov = belief
    size = SHAPES[l][1] - 1  # the bias is the weight of a certain input
    moment = RNG.normal(size=(size, size))
    moment = moment @ moment.T
    wanted = np.einsum("imjn,mn->ij", layer_cov(cov, l)[:, :size, :, :size], moment)
    assert close(weights.contract(l, array(moment)), wanted)


def test_the_slope_covariance_is_a_congruence_of_the_covariance(belief):
    weights, cov = belief
    slope = RNG.normal(size=(2, 14))
    wanted = slope @ cov @ slope.T
    assert close(weights.slope_cov(array(slope), own=array(wanted)), wanted)


def test_loadings_carry_the_cross_covariance_of_a_hidden_vector(belief):
    # h = B x + A_0 E[inputs]: what the first layer's weights add to the covariance of h and to its covariance with layer 1.
    weights, cov = belief
    cross, inputs, through = RNG.normal(size=(2, 14)), RNG.normal(size=2), RNG.normal(size=(3, 2))
    loading = weights.initial_loading(array(cross))
    added, own = weights.own_loading(0, array(inputs), loading)
    jacobian = np.kron(np.eye(3), inputs)
    assert close(own, jacobian @ cov[:6, :6] @ jacobian.T)
    hidden = weights.hidden_cross(1, weights.layer_crosses(array(cross))[1], array(through) @ loading + added)
    basis = np.asarray(hidden.basis, float).reshape(len(hidden.basis), -1)
    found = basis if hidden.loading is None else np.asarray(hidden.loading, float) @ basis
    assert close(array(found), through @ cross[:, 6:] + jacobian @ cov[:6, 6:])


@pytest.mark.parametrize("size", [2, 5])
def test_the_variance_of_a_scalar_output_in_one_pass_is_the_sum_of_its_terms(size):
    rng = np.random.default_rng(size)
    weights_cov = np.cov(rng.normal(size=(size + 2, 40)))
    weights = ps.DenseWeights(array(rng.normal(size=size + 2)), array(weights_cov), ((1, size + 2),))
    cov, inputs = np.cov(rng.normal(size=(size, 40))), rng.normal(size=size + 2)
    basis = rng.normal(size=(size, 1, size + 2))
    cross = LayerCross(None, array(basis))
    found = weights.scalar_output_var(0, array(inputs), array(cov), cross)
    weight = np.asarray(weights.mean, float)[:size]
    toward = basis[:, 0, :size]
    wanted = (
        weight @ cov @ weight
        + inputs @ weights_cov @ inputs
        + 2 * weight @ basis[:, 0] @ inputs
        + (weights_cov[:size, :size] * cov).sum()
        + (toward * toward.T).sum()
    )
    assert close(found, np.array([[wanted]]), scale=10)


# ---------------------------------------------------------------- bounded rank


def bounded(rank, room, prior=PRIOR):
    return ps.LowRankWeights.bounded(ps.DiagonalWeights(array(MEAN), array(prior), SHAPES), rank, room)


def downdates(count):
    """Columns of orthogonal downdates that together leave the covariance positive definite, largest first."""
    white = np.linalg.qr(RNG.normal(size=(14, count)))[0] * np.geomspace(0.9, 0.01, count)
    return np.sqrt(PRIOR)[:, None] * white


def test_a_bounded_factor_is_exact_while_its_columns_fit():
    belief, removed = bounded(4, 2), downdates(6)
    for n in range(3):
        belief = belief.downdate(jnp.ones(14), array(removed[:, 2 * n : 2 * n + 2]))
    assert close(belief.mean, MEAN + 3)
    assert close(belief.cov(), np.diag(PRIOR) - removed @ removed.T)
    assert belief.factor.shape == (14, 6)


def test_a_full_factor_is_compressed_to_its_largest_directions_and_errs_to_the_safe_side():
    belief, removed = bounded(4, 2), downdates(8)[:, ::-1]
    for n in range(4):
        belief = belief.downdate(jnp.zeros(14), array(removed[:, 2 * n : 2 * n + 2]))
    # The first six, the weakest, were compressed to four of them: the two weakest of all are dropped.
    kept = np.diag(PRIOR) - removed[:, 2:] @ removed[:, 2:].T
    assert close(belief.cov(), kept)
    dropped = np.asarray(belief.cov(), float) - (np.diag(PRIOR) - removed @ removed.T)
    assert np.linalg.eigvalsh(dropped).min() > -1e-6
    assert belief.factor.shape == (14, 6)
    assert int(belief.used) == 6


def test_a_compression_is_finite_for_weights_without_variance():
    prior = np.where(np.arange(14) < 3, 0.0, PRIOR)
    belief = bounded(2, 1, prior)
    removed = np.sqrt(prior / PRIOR)[:, None] * downdates(5)
    for n in range(5):
        belief = belief.downdate(jnp.zeros(14), array(removed[:, n : n + 1]))
    assert jnp.isfinite(belief.factor).all()
    assert smallest_eigenvalue(belief.cov()) > -1e-6


# ---------------------------------------------------------------- cross-covariances


@pytest.mark.parametrize("steps", [0, 1, 3, 7])  # few and many: two forms
@pytest.mark.parametrize("hidden", [False, True])
def test_a_stepwise_cross_covariance_equals_the_array_that_it_stands_for(steps, hidden):
    rng = np.random.default_rng(steps)
    left, right, var = rng.normal(size=(steps, 4, 3)), rng.normal(size=(steps, 6)), rng.uniform(size=(4, 6))
    size = 5 if hidden else 3
    loading = array(rng.normal(size=(size, 3))) if hidden else None
    stepwise = StepwiseLayerCross(loading, array(left), array(right), array(var))
    written_out = LayerCross(loading, array(np.einsum("tor,ti,oi->roi", left, right, var)))
    inputs = array(rng.normal(size=6))
    assert close(stepwise.times_inputs(inputs), written_out.times_inputs(inputs))
    for found, wanted in zip(stepwise.product_moments(size), written_out.product_moments(size), strict=True):
        assert close(found, wanted)


@pytest.mark.parametrize("outputs", [1, 3])
def test_product_moments_are_those_of_isserlis_theorem(outputs):
    rng = np.random.default_rng(outputs)
    cross = rng.normal(size=(2, outputs, 4))  # Cov[h_m, a_in]
    mean, cov = LayerCross(None, array(cross)).product_moments(2)
    assert close(mean, np.einsum("mim->i", cross[:, :, :2]))
    assert close(cov, np.einsum("nim,mjn->ij", cross[:, :, :2], cross[:, :, :2]))


def test_appending_a_transition_moves_the_state_and_adds_its_weight_slope():
    weights = ps.DiagonalWeights(array(MEAN), array(PRIOR), SHAPES)
    stepwise, cross = StepwiseCross.zero(2, weights), np.zeros((2, 14))
    assert stepwise.shape == (2, 14)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        slope = rng.normal(size=(2, 2))
        factors = [(rng.normal(size=(2, o)), rng.normal(size=i)) for o, i in SHAPES]
        weight_slope = np.hstack([np.einsum("yo,i->yoi", behind, inputs).reshape(2, -1) for behind, inputs in factors])
        moved = array(slope), array(weight_slope), tuple((array(behind), array(inputs)) for behind, inputs in factors)
        written_out = weights.predict_cross(array(cross), *moved)
        stepwise, cross = weights.predict_cross(stepwise, *moved), slope @ cross + weight_slope * PRIOR
        assert close(written_out, cross)
        for l, layer in enumerate(weights.layer_crosses(stepwise)):
            basis = np.einsum("tor,ti,oi->roi", *(np.asarray(part, float) for part in (layer.left, layer.right, layer.var)))
            assert close(array(basis), cross[:, weights.slice(l)].reshape(basis.shape))


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: ps.DiagonalWeights(jnp.zeros(14), jnp.zeros(13), SHAPES), "var"),
        (lambda: ps.DiagonalWeights(jnp.zeros(13), jnp.zeros(13), SHAPES), "mean|shapes"),
        (lambda: ps.DenseWeights(jnp.zeros(14), jnp.zeros((14, 13)), SHAPES), "cov"),
        (lambda: ps.DenseWeights(jnp.zeros(14), jnp.zeros(14), SHAPES), "cov"),
        (lambda: ps.LowRankWeights(jnp.zeros(14), jnp.zeros(13), jnp.zeros((14, 1)), SHAPES), "prior_var"),
        (lambda: ps.LowRankWeights(jnp.zeros(14), jnp.zeros(14), jnp.zeros((13, 1)), SHAPES), "factor"),
    ],
)
def test_a_mistake_is_refused_by_name(build, named):
    with pytest.raises((ValueError, TypeError), match=named):
        build()
