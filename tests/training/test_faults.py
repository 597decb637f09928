"""What can go wrong around a checkpoint costs a chunk at most, and is said."""

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prodssm.training.claims import claimed

pytestmark = pytest.mark.usefixtures("standard_promotion")
KILLS = Path(__file__).parent.parent.parent / "scripts" / "kills.py"


def test_a_full_disk_costs_no_training(training_problem, same, tmp_path):
    path, recipe = tmp_path / "run.safetensors", replace(training_problem.recipe, iterations=50)
    wanted, _ = training_problem.train(recipe)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # bytes of any file from now on
    try:
        with pytest.warns(
            UserWarning, match=r"run\.safetensors could not be written after (25|50) iterations .* training goes on"
        ):
            found, history = training_problem.train(recipe, checkpoint=path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert same(found, wanted)
    assert history.iterations == [25, 50]
    assert not any(tmp_path.iterdir())


def test_a_truncated_checkpoint_is_refused_with_its_name(training_problem, tmp_path):
    path, recipe = tmp_path / "run.safetensors", replace(training_problem.recipe, iterations=25)
    training_problem.train(recipe, checkpoint=path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"run\.safetensors is damaged .* delete it to begin anew"):
        training_problem.train(recipe, checkpoint=path)


def test_two_fits_do_not_share_a_checkpoint(training_problem, tmp_path):
    path, recipe = tmp_path / "run.safetensors", replace(training_problem.recipe, iterations=25)
    with claimed(path), pytest.raises(ValueError, match="is used by another fit that is running"):
        training_problem.train(recipe, checkpoint=path)
    training_problem.train(recipe, checkpoint=path)
    assert [each.name for each in tmp_path.iterdir()] == ["run.safetensors"]


def test_the_claim_of_a_killed_process_ends_with_it(tmp_path):
    path = tmp_path / "run.safetensors"
    code = "import sys, os, signal\nfrom prodssm.training.claims import claimed\n"
    code += "with claimed(sys.argv[1]):\n    os.kill(os.getpid(), signal.SIGKILL)"
    assert subprocess.run([sys.executable, "-c", code, path]).returncode == -9
    assert Path(f"{path}.lock").exists()
    with claimed(path):
        pass
    assert not Path(f"{path}.lock").exists()


def test_a_folder_that_is_not_there_is_said_before_training(training_problem, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere does not exist"):
        training_problem.train(checkpoint=tmp_path / "nowhere" / "run.safetensors")


@pytest.mark.slow
@pytest.mark.float64
def test_killed_runs_resume_to_the_same_bits():
    found = subprocess.run([sys.executable, KILLS, "--count", "5"], capture_output=True, text=True, timeout=900)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "5 killed and resumed runs equal the undisturbed one" in found.stdout
