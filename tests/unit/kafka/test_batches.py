"""Batches keep the order, stay below the topic's limit, and follow one another in sequence."""

from itertools import pairwise

from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from qimd.adapters.kafka.batches import BATCH_OVERHEAD_BYTES, Cutter, Lot
from qimd.ports.log import ProduceRecord

LIMIT = 1_000


def pairs(*sizes: int) -> list[tuple[int, ProduceRecord]]:
    return [(place, ProduceRecord(0, bytes([place]) * size)) for place, size in enumerate(sizes)]


def values(lot: Lot) -> list[bytes]:
    return [record.value for record in DefaultRecordBatch(lot.encoded)]


@given(st.lists(st.integers(0, LIMIT), min_size=1, max_size=100))
def test_every_record_is_in_one_batch_in_order(sizes: list[int]) -> None:
    records = pairs(*sizes)
    lots = list(Cutter(7, 0, LIMIT + BATCH_OVERHEAD_BYTES).cut(0, records, 0))
    assert [place for lot in lots for place in lot.places] == list(range(len(sizes)))
    assert [value for lot in lots for value in values(lot)] == [each.value for _, each in records]
    assert all(len(lot.encoded) <= LIMIT + BATCH_OVERHEAD_BYTES for lot in lots)


def test_a_record_of_the_largest_size_fits_alone() -> None:
    (lot,) = Cutter(7, 0, LIMIT + BATCH_OVERHEAD_BYTES).cut(0, pairs(LIMIT), 0)
    assert len(lot.encoded) <= LIMIT + BATCH_OVERHEAD_BYTES


def test_the_sequence_goes_on_from_batch_to_batch_and_from_call_to_call() -> None:
    cutter = Cutter(7, 3, LIMIT)
    lots = [*cutter.cut(0, pairs(300, 300, 300, 300, 300), 0), *cutter.cut(0, pairs(1), 0)]
    headers = [DefaultRecordBatch(lot.encoded) for lot in lots]
    assert len(lots) > 2
    assert headers[0].base_sequence == 0
    for before, after in pairwise(zip(headers, lots, strict=True)):
        assert after[0].base_sequence == before[0].base_sequence + len(before[1].places)
    assert {(header.producer_id, header.producer_epoch) for header in headers} == {(7, 3)}


def test_each_partition_has_a_sequence_of_its_own() -> None:
    cutter = Cutter(7, 0, LIMIT)
    cutter.cut(0, pairs(1, 1), 0)
    (other,) = cutter.cut(1, pairs(1), 0)
    assert DefaultRecordBatch(other.encoded).base_sequence == 0
