"""Four measured systems with one control input and one output, as used for recurrent Gaussian processes and PR-SSM.

Sources and licences: the actuator (a hydraulic crane) and copies of ball-and-beam (DaISy 96-004) and dryer (DaISy 96-006, KU
Leuven) are in GitHub zhenwendai/RGP (BSD 3-clause, none stated for the data). The cascaded tanks are by Schoukens, Mattsson,
Wigren and Noël, nonlinearbenchmark.org, doi 10.4121/12960104 (CC BY-SA 4.0).

Time: row t of a file is `u[t]`, held until the next row, and `y[t]`, measured when it sets in, which is the convention of
`Series`: no shift. Beside four past values of each, `u[t]` lowers the error of a linear prediction of `y[t]` by less than one
per cent in every set. Series have unit steps; seconds are in `sampling_time`. The usual protocol standardises `u` and `y` by
the training half and scores a free-running simulation.

Traps: The actuator's file is big-endian. The tanks' file has an empty column at the end and its sampling time in the first row
only; the output of the tanks saturates at 10 (overflow), and both of their records begin in the same unknown state.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from prodssm.data.series import Series
from prodssm.datasets.locate import find

COMMIT = "e55e66d36692a5163f2091bae695a7c6f7d623e8"
RGP = f"https://raw.githubusercontent.com/zhenwendai/RGP/{COMMIT}/datasets/system_identification"
TANKS = "https://data.4tu.nl/file/d4810b78-6cdd-48fe-8950-9bd601e5f47f/3b697e42-01a4-4979-a370-813a456c36f5"
SHA256 = {
    "actuator": "35d1f95176afd856eb4fe0e2f87e3dff39657db8e6fcf7c531078c8f4eb571e4",
    "ballbeam": "e9c48a4f7474953969d4950b4ef72558084b1995f776792ac0cbc80550e6ff42",
    "dryer": "adcb2f5a1d9e174d08dd49f7f037626745b5e69cbda0bc1e8dca2a7c687d4538",
    "tanks": "ef2388ed822f3aef4aa80d6b0f2b466dd80b361786b3eafc7a2957c31ea323a7",
}
NAMES = tuple(SHA256)


class _Facts(NamedTuple):
    file: str
    url: str
    u: str
    y: str
    sampling_time: float | None
    member: str | None = None


_FACTS = {
    "actuator": _Facts(
        "actuator.mat", f"{RGP}/actuator.mat", "valve opening, unit not stated", "oil pressure, unit not stated", None
    ),
    "ballbeam": _Facts(
        "ballbeam.dat", f"{RGP}/ballbeam.dat", "beam angle, unit not stated", "ball position, unit not stated", 0.1
    ),
    # DaISy is silent about the sampling time; this is the one of the same data in Ljung's toolbox.
    "dryer": _Facts(
        "dryer.dat", f"{RGP}/dryer.dat", "heater voltage, unit not stated", "air temperature, unit not stated", 0.08
    ),
    "tanks": _Facts(
        file="cascaded_tanks/dataBenchmark.csv",
        url=TANKS,
        u="pump voltage, V",
        y="level of the lower tank, V of an uncalibrated sensor",
        sampling_time=4.0,
        member="CascadedTanksFiles/dataBenchmark.csv",
    ),
}


@dataclass(frozen=True, eq=False)
class SystemData:
    """A system to identify: one series to learn from and one to be judged on.

    Attributes:
        train: First half of the record, or the record for estimation.
        test: Second half, or the other record.
        units: What `u` and `y` are, and their units.
        sampling_time: Seconds between rows; `None` where no source says.
        source: Address of the file.
    """

    train: Series
    test: Series
    units: dict[str, str]
    sampling_time: float | None
    source: str


def load(name: str) -> SystemData:
    """One of the systems in NAMES.

    Example:
        >>> load("tanks").train.y.shape
        (1024, 1)
    """
    if name not in _FACTS:
        raise ValueError(f"name must be one of {', '.join(NAMES)}; got {name!r}")
    facts = _FACTS[name]
    path = find(f"sysid/{facts.file}", url=facts.url, sha256=SHA256[name], member=facts.member)
    train, test = (_tanks if name == "tanks" else _halves)(path)
    return SystemData(train, test, {"u": facts.u, "y": facts.y}, facts.sampling_time, facts.url)


def _halves(path: Path) -> tuple[Series, Series]:
    if path.suffix == ".mat":
        from scipy.io import loadmat  # slow to import

        arrays = loadmat(path)
        u, y = (arrays[key].astype(np.float64)[:, 0] for key in ("u", "p"))
    else:
        u, y = np.loadtxt(path, unpack=True)
    half = len(y) // 2
    return Series(y[:half], u[:half]), Series(y[half:], u[half:])


def _tanks(path: Path) -> tuple[Series, Series]:
    u_train, u_test, y_train, y_test = np.loadtxt(path, delimiter=",", skiprows=1, usecols=range(4), unpack=True)
    return Series(y_train, u_train), Series(y_test, u_test)
