"""The benches run: tiny sizes, nothing timed. They check by themselves what they measure."""

import json
from pathlib import Path

import pytest
from bench.__main__ import MEASURES, main
from bench.harness import AT_LEAST, AT_MOST, Target
from tests import engines


@pytest.mark.parametrize("name", MEASURES)
def test_a_bench_runs_and_writes_its_rows(name: str, tmp_path: Path) -> None:
    missing = [one for one in ("redis", "etcd", "kafka") if engines.address(one) is None]
    if name.startswith("engine_") and missing:
        pytest.skip(f"{', '.join(missing)} does not run here (make engines)")
    out = tmp_path / "bench.json"
    assert main([name, "--smoke", "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["machine"]["cores"] >= 1
    assert document["measures"]
    for row in document["measures"]:
        assert {"measure", "value", "unit", "against", "against_value", "ratio"} <= row.keys()
        assert row["against_value"] != 0


def test_an_unknown_bench_is_refused_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no-such-bench"])
    assert "no-such-bench" in capsys.readouterr().err


def test_a_target_knows_its_right_side() -> None:
    assert Target(AT_LEAST, 0.5).met_by(0.6)
    assert not Target(AT_LEAST, 0.5).met_by(0.4)
    assert Target(AT_MOST, 1.5).met_by(1.4)
    assert not Target(AT_MOST, 1.5).met_by(1.6)
