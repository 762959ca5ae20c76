"""The contract needs grpcio and protobuf alone, since the SDK does."""

import pkgutil
import subprocess
import sys

from qimd import contract

EXTRAS = ("xxhash", "google.rpc", "grpc_status", "prometheus_client", "structlog", "jwt")

PROGRAM = """
import importlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in {extras!r}:
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
for name in {modules!r}:
    importlib.import_module(name)
if {probe!r}:
    importlib.import_module({probe!r})
"""


def run(probe=""):
    modules = [f"qimd.contract.{module.name}" for module in pkgutil.iter_modules(contract.__path__)]
    program = PROGRAM.format(extras=EXTRAS, modules=modules, probe=probe)
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_every_module_of_the_contract_imports_without_the_extras():
    done = run()
    assert done.returncode == 0, done.stderr


def test_the_extras_are_out_of_reach_in_that_test():
    assert "ImportError: xxhash" in run(probe="xxhash").stderr
