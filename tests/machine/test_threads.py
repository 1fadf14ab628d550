import time
from threading import Barrier

import pytest

from gradscope.machine.threads import in_threads


def test_results_have_the_order_of_their_items() -> None:
    meet = Barrier(2, timeout=60)

    def work(number: int) -> int:
        meet.wait()
        return number**2

    assert in_threads(work, range(2)) == [0, 1]
    assert in_threads(work, []) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_what_has_not_begun(error: type[BaseException]) -> None:
    begun = []

    def work(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise error
        time.sleep(0.01)

    with pytest.raises(error):
        in_threads(work, range(1000))
    assert len(begun) < 1000
