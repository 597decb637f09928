"""Walks of subject 35 of the CMU motion capture database, as prepared for ODE2VAE (Yıldız et al., 2019).

Source: GitHub uncbiag/neuro_shooting, a copy of the file that cagatayyildiz/ODE2VAE links to; the recordings are from
mocap.cs.cmu.edu.
Units: degrees; outputs 0 to 2 are increments of the root's position per time step, unit not stated. Nothing is scaled.
Licence: see LICENCE.

Traps: Outputs 24, 25, 31 and 32 (the clavicles) are constant up to rounding (standard deviation 1e-14): never divide by it,
and a variance learned for them makes the likelihood unbounded. Every sequence is centred by its own mean over all 300 time
steps, test sequences too, so that the benchmark leaks that mean; 1e-5 is added to train and validation, nothing to test.
Standard deviations of the other outputs range from 0.013 to 18, so that a mean squared error is dominated by the legs.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from prodssm.datasets.locate import find

COMMIT = "1b13e147417f455df63028d8633fea1e4de238c3"
ADDRESS = f"https://raw.githubusercontent.com/uncbiag/neuro_shooting/{COMMIT}/data/mocap35.mat"
SHA256 = "105484f138487f10209cce883d26e2e030d10a6df6f10159f4e6e253f9b03b8d"
LICENCE = (
    "The repository of the copy is under Apache-2.0, that of ODE2VAE under MIT; neither states a licence for the data, "
    "for which the terms of the CMU Graphics Lab Motion Capture Database hold."
)
CONSTANT_OUTPUTS = (24, 25, 31, 32)


@dataclass(frozen=True, eq=False)
class Mocap:
    """Sequences of 300 time steps and 50 outputs, split by trial.

    Attributes:
        train: Trials 1 to 16.
        validation: Trials 28 to 30.
        test: Trials 31 to 34.
        source: Address of the file.
        licence: What is known about it.
    """

    train: Float64[np.ndarray, "16 300 50"]
    validation: Float64[np.ndarray, "3 300 50"]
    test: Float64[np.ndarray, "4 300 50"]
    source: str = ADDRESS
    licence: str = LICENCE


def load() -> Mocap:
    """All sequences; mind the traps at the top of this module.

    Example:
        >>> load().test.shape
        (4, 300, 50)
    """
    from scipy.io import loadmat  # slow to import

    arrays = loadmat(find("mocap/mocap35.mat", url=ADDRESS, sha256=SHA256))
    return Mocap(*(arrays[key].astype(np.float64) for key in ("Xtr", "Xval", "Xtest")))
