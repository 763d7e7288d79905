import pytest

from myna.daemon.child_environment import child_environment


def test_children_keep_the_users_variables_and_the_daemons_numbering_of_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")  # nvidia-smi, which numbered them, knows no such order
    told = child_environment(MYNA_EXTRA="1")
    assert told["OMP_WAIT_POLICY"] == "ACTIVE"
    assert told["OPENBLAS_NUM_THREADS"] == "1"
    assert told["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert told["MYNA_EXTRA"] == "1"
