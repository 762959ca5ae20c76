"""A broker that has no id for a producer at the moment is asked again, and no other refusal is."""

from typing import Any

import pytest
from aiokafka.protocol.transaction import InitProducerIdResponse_v0
from tests.support.runtime import ManualRuntime

from qimd.adapters.kafka.brokers import Brokers, Cluster
from qimd.adapters.kafka.log import KafkaLog
from qimd.core.errors import ErrorCode, QimError

LOADING = 14
NOT_AUTHORISED = 31


class Script(Brokers):
    """Brokers that answer InitProducerId with these error codes, one after the other."""

    def __init__(self, *codes: int) -> None:
        super().__init__(Cluster(()), set())
        self.codes = list(codes)

    async def ask_any(self, request: Any) -> Any:
        return InitProducerIdResponse_v0(0, self.codes.pop(0), 7, 0)


async def test_a_broker_that_fetches_more_ids_is_asked_again() -> None:
    brokers = Script(LOADING, LOADING, 0)
    async with ManualRuntime() as runtime:
        assert await KafkaLog(brokers, runtime, "t")._producer_id() == (7, 0)
    assert brokers.codes == []


async def test_another_refusal_is_final() -> None:
    brokers = Script(NOT_AUTHORISED, 0)
    async with ManualRuntime() as runtime:
        with pytest.raises(QimError) as error:
            await KafkaLog(brokers, runtime, "t")._producer_id()
    assert error.value.code is ErrorCode.UNAVAILABLE
    assert brokers.codes == [0]
