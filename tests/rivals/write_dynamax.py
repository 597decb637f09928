"""Write dynamax.npz: what dynamax's Kalman smoother says about the linear model of problem.py.

dynamax pins nightly packages, so tests compare with this file and not with the library. To write it anew:

    pip install '.[bench]' -c constraints.txt
    python tests/rivals/write_dynamax.py
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from problem import COV, MEAN, OFFSET, A, B, C, Q, R, U, Y

jax.config.update("jax_enable_x64", True)


def main() -> None:
    """Run the smoother, keep its answers."""
    from dynamax.linear_gaussian_ssm import inference  # pyright: ignore[reportMissingImports]

    params = inference.ParamsLGSSM(
        initial=inference.ParamsLGSSMInitial(mean=jnp.asarray(MEAN), cov=jnp.asarray(COV)),
        dynamics=inference.ParamsLGSSMDynamics(
            weights=jnp.asarray(A), bias=jnp.asarray(OFFSET), input_weights=jnp.asarray(B), cov=jnp.diag(jnp.asarray(Q))
        ),
        emissions=inference.ParamsLGSSMEmissions(
            weights=jnp.asarray(C), bias=jnp.zeros(2), input_weights=jnp.zeros((2, 1)), cov=jnp.diag(jnp.asarray(R))
        ),
    )
    # There an input moves the state to its own time, here away from it.
    found = inference.lgssm_smoother(params, jnp.asarray(Y), jnp.asarray(np.roll(U, 1, axis=0)))
    names = ("marginal_loglik", "filtered_means", "filtered_covariances", "smoothed_means", "smoothed_covariances")
    np.savez(Path(__file__).with_name("dynamax.npz"), **{name: np.asarray(getattr(found, name)) for name in names})


if __name__ == "__main__":
    main()
