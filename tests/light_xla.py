"""Flags of XLA with which programs compile in a third of the time (docs/architecture.md, "Tests compile lightly")."""

from importlib.metadata import version

FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
# Later versions have the newer emitters only, and end the process at a flag that they do not know.
if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
LIGHT = " ".join(FLAGS)
