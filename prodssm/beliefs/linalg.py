"""Symmetric matrices: Cholesky factors of singular ones, triangular solves, eigenvectors. The only file that factorises."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Up to this size factorisations are unrolled: XLA fuses plain arithmetic into the code around it, while a LAPACK call costs a
# microsecond or two, which is most of a filter step for a one- or two-dimensional state.
UNROLLED = 4
# Up to this size products are multiplied out for the same reason: XLA's matrix product costs a third of a microsecond a call,
# and of a batch it makes a loop of calls.
MULTIPLIED_OUT = 8


def symmetrise(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The symmetric part; applied after every update, because rounding breaks symmetry."""
    return (matrix + matrix.T) / 2


def matmul(a: Float[Array, "m n"], b: Float[Array, "n k"]) -> Float[Array, "m k"]:
    """`a @ b`, for small matrices as plain arithmetic that XLA fuses."""
    if max(*a.shape, *b.shape) > MULTIPLIED_OUT:
        return a @ b
    return (a[:, :, None] * b[None, :, :]).sum(axis=1)


def sandwich(left: Float[Array, "m n"], matrix: Float[Array, "n n"]) -> Float[Array, "m m"]:
    """`left @ matrix @ left.T`, the congruence that maps a covariance through a linear function."""
    return matmul(matmul(left, matrix), left.T)


def outer_sum(rows: Float[Array, "m n"]) -> Float[Array, "n n"]:
    """`rows.T @ rows`, the sum of the outer products of the rows; of short ones as plain arithmetic that XLA fuses."""
    if rows.shape[1] > MULTIPLIED_OUT:
        return rows.T @ rows
    return (rows[:, :, None] * rows[:, None, :]).sum(axis=0)


def safe_sqrt(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Square root; zero, with zero gradient, where `x` is not positive."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)


# Jitted for eager callers, inlined into the program of a traced caller.
@partial(jax.jit, static_argnames=("definite", "jitter"), inline=True)
def cholesky(cov: Float[Array, "n n"], *, definite: bool = False, jitter: float = 0.0) -> Float[Array, "n n"]:
    r"""Lower Cholesky factor of a positive semi-definite matrix: `chol @ chol.T` equals `cov` up to rounding.

    The matrix is scaled to unit diagonal first, so that pivots and jitter are relative to the variance of each coordinate.

    Args:
        cov: The matrix, possibly singular. In the unrolled form a pivot below rounding becomes a zero column with zero
            gradient; larger matrices get a jitter of a few rounding errors of each diagonal entry.
        definite: Keep every pivot positive, however small, because the factor will be inverted.
        jitter: Added to the diagonal, relative to each entry.

    Returns:
        The lower triangular factor.

    Example:
        >>> cholesky(jnp.array([[4.0, 2.0], [2.0, 1.0]])).tolist()
        [[2.0, 0.0], [1.0, 0.0]]
    """
    n, rounding = cov.shape[0], rounding_error(cov)
    # Stands in for the scale of a zero variance; powers of its inverse, which appear in gradients, must be finite.
    tiny = 1e-9 if jnp.finfo(cov.dtype).bits == 32 else 1e-60
    diagonal = jnp.diag(cov)
    scale = jnp.where(diagonal > 0, jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1.0)), tiny)
    unit = cov / scale[:, None] / scale[None, :]
    if n > UNROLLED:
        # Coordinates of zero variance are decoupled, and no gradient passes through them.
        alive = diagonal > 0
        unit = jnp.where(alive[:, None] & alive[None, :], unit, 0.0) + jnp.diag(jnp.where(alive, jitter + rounding, 1.0))
        return scale[:, None] * jnp.linalg.cholesky(unit, symmetrize_input=False)
    columns: list[Array] = []
    for j in range(n):
        column = unit[:, j]
        for done in columns:
            column = column - done * done[j]
        pivot = column[j] + jitter
        alive = pivot > rounding
        root = jnp.sqrt(jnp.where(alive, pivot, rounding if definite else 1.0))
        below = jnp.where(jnp.arange(n) > j, column / root, 0.0)
        whole = jnp.where(jnp.arange(n) == j, root, below)
        columns.append(whole if definite else jnp.where(alive, whole, 0.0))
    return scale[:, None] * jnp.stack(columns, axis=1)


def rounding_error(cov: Float[Array, "n n"]) -> float:
    """Rounding error of a factorisation, relative to a diagonal entry."""
    return 4 * cov.shape[0] * float(jnp.finfo(cov.dtype).eps)


def solve_lower(chol: Float[Array, "n n"], rows: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """`chol⁻¹ rows` for a lower triangular factor."""
    n = chol.shape[0]
    if n > UNROLLED:
        return jax.scipy.linalg.solve_triangular(chol, rows, lower=True)
    solved: list[Array] = []
    for i in range(n):
        left = rows[i]
        for j, done in enumerate(solved):
            left = left - chol[i, j] * done
        solved.append(left / chol[i, i])
    return jnp.stack(solved)


def solve_upper(chol: Float[Array, "n n"], rows: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """`chol⁻ᵀ rows` for a lower triangular factor."""
    if chol.shape[0] > UNROLLED:
        return jax.scipy.linalg.solve_triangular(chol, rows, lower=True, trans=1)
    return solve_lower(chol[::-1, ::-1].T, rows[::-1])[::-1]


def solve_psd(cov: Float[Array, "n n"], rows: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """`cov⁻¹ rows` through a Cholesky factor."""
    chol = cholesky(cov, definite=True)
    return solve_upper(chol, solve_lower(chol, rows))


def whiten_plus_identity(psd: Float[Array, "n n"], rows: Float[Array, "n m"]) -> tuple[Float[Array, "n m"], Float[Array, ""]]:
    """`chol⁻¹ rows` and the log determinant of `I + psd = chol cholᵀ`.

    In exact arithmetic every pivot is at least one; where rounding of a huge matrix makes it smaller, one stands in.
    """
    n = psd.shape[0]
    whole = jnp.concatenate([psd + jnp.eye(n, dtype=psd.dtype), rows], axis=1)
    if n > MULTIPLIED_OUT:
        chol = cholesky(whole[:, :n], definite=True)
        return solve_lower(chol, rows), 2 * jnp.log(jnp.diag(chol)).sum()
    white: list[Array] = []
    pivots: list[Array] = []
    for k in range(n):
        pivot = jnp.maximum(whole[k, k], 1.0)
        row = whole[k] / jnp.sqrt(pivot)
        whole = whole - (whole[:, k] / jnp.sqrt(pivot))[:, None] * row[None, :]
        white.append(row[n:])
        pivots.append(pivot)
    return jnp.stack(white), jnp.log(jnp.stack(pivots)).sum()


def unwhiten(white: Float[Array, "y n"], chol: Float[Array, "n n"], var: Float[Array, " n"]) -> Float[Array, "y n"]:
    """The slope whose product with the Cholesky factor is `white`; directions in which the factor is only jitter get none."""
    alive = (var > 0) & (jnp.diag(chol) ** 2 > 4 * rounding_error(chol) * var)
    filled = jnp.where(alive[None, :], chol, jnp.eye(var.size, dtype=chol.dtype))
    return solve_upper(filled, jnp.where(alive[None, :], white, 0.0).T).T


def largest_eigenvalue_bound(psd: Float[Array, "n n"], squarings: int = 8) -> Float[Array, ""]:
    r"""$\|M^k\|_F^{1/k}$, k = 2^squarings: at least the largest eigenvalue, and at most $n^{1/2k}$ times it; with gradients."""
    log_size = jnp.zeros((), psd.dtype)
    for step in range(squarings + 1):
        size = jnp.sqrt((psd**2).sum() + jnp.finfo(psd.dtype).tiny)
        psd, log_size = psd / size, log_size + jnp.log(size) / 2**step
        psd = psd @ psd
    return jnp.exp(log_size)


def eigh(gram: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Eigenvalues, smallest first, and eigenvectors as columns."""
    return jnp.linalg.eigh(gram)


@jax.custom_jvp
def positive_part(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """A symmetric matrix without its negative eigenvalues."""
    values, vectors = eigh(matrix)
    return (vectors * jnp.maximum(values, 0.0)[None, :]) @ vectors.T


@positive_part.defjvp
def _(primals, tangents):
    # The theorem of Daleckii and Krein: divided differences of max(0, v), which equal eigenvalues do not make infinite.
    values, vectors = eigh(primals[0])
    kept, gap = jnp.maximum(values, 0.0), values[:, None] - values[None, :]
    equal = jnp.abs(gap) <= jnp.finfo(values.dtype).eps * (jnp.abs(values)[:, None] + jnp.abs(values)[None, :])
    step = jnp.broadcast_to((values > 0).astype(values.dtype)[:, None], gap.shape)
    ratio = jnp.where(equal, step, (kept[:, None] - kept[None, :]) / jnp.where(equal, 1.0, gap))
    inner = vectors.T @ tangents[0] @ vectors
    return (vectors * kept[None, :]) @ vectors.T, vectors @ (ratio * inner) @ vectors.T


def leading_eigenvectors(gram: Float[Array, "n n"], count: int) -> Float[Array, "n k"]:
    """Eigenvectors of the largest eigenvalues, constant under differentiation."""
    return eigh(jax.lax.stop_gradient(gram))[1][:, ::-1][:, :count]


def fusion_barrier(x: Array) -> Array:
    """`x` unchanged, materialised once by XLA, and so is its gradient.

    XLA fuses cheap arithmetic into every consumer and recomputes it there; a division it never duplicates, so this one divides
    by a one that the compiler cannot fold. (`jax.lax.optimization_barrier` is removed before fusion on CPU.)
    """
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    return x / jnp.where(jnp.isnan(jax.lax.stop_gradient(x)), jnp.full_like(x, 2.0), 1.0)


def frobenius_inner(a: Float[Array, "m n"], b: Float[Array, "m n"]) -> Float[Array, ""]:
    """Sum of elementwise products, as a matrix-vector product: XLA's flat reductions are several times slower on CPU."""
    return ((a * b) @ jnp.ones(a.shape[1], a.dtype)).sum()
