"""Records cut into Kafka's batches, each with its place in the producer's sequence.

The broker takes the batches of a producer and partition in the order of their sequence numbers and
each once, so a batch whose reply was lost can be sent again as it is.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from qimd.ports.log import ProduceRecord

BATCH_OVERHEAD_BYTES: Final = DefaultRecordBatchBuilder.estimate_size_in_bytes(None, b"", [])
"""What a batch of one record has besides the record's value, at most. A topic's
`max.message.bytes` bounds the batch."""

_MAGIC: Final = 2
_NO_COMPRESSION: Final = 0
_SEQUENCES: Final = 2**31


@dataclass(slots=True)
class Lot:
    """One batch. `places` are its records' places in the caller's batch."""

    partition: int
    places: Sequence[int]
    encoded: bytes
    maybe_landed: bool = False
    """It was sent, and no reply said that it was not appended."""


class Cutter:
    """Cuts what one producer sends. `producer_id` and `producer_epoch` are the broker's."""

    def __init__(self, producer_id: int, producer_epoch: int, batch_bytes_max: int) -> None:
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._batch_bytes_max = batch_bytes_max
        self._sequences: dict[int, int] = {}

    def cut(
        self, partition: int, records: Sequence[tuple[int, ProduceRecord]], now_ms: int
    ) -> deque[Lot]:
        """The lots of one partition's (place, record) pairs, in order."""
        lots: deque[Lot] = deque()
        start = 0
        while start < len(records):
            sequence = self._sequences.get(partition, 0)
            builder = DefaultRecordBatchBuilder(
                _MAGIC,
                _NO_COMPRESSION,
                0,
                self._producer_id,
                self._producer_epoch,
                sequence,
                self._batch_bytes_max,
            )
            count = 0
            # A full builder gives None.
            while start + count < len(records) and builder.append(
                count, now_ms, None, records[start + count][1].value, []
            ):
                count += 1
            places = [place for place, _ in records[start : start + count]]
            lots.append(Lot(partition, places, bytes(builder.build())))
            self._sequences[partition] = (sequence + count) % _SEQUENCES
            start += count
        return lots
