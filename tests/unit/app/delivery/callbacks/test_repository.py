"""When a callback is tried again."""

from app.delivery.callbacks.repository import DELAYS_S, delay_s


def test_ten_attempts_take_three_days_as_the_standard_recommends() -> None:
    assert sum(DELAYS_S) == 75 * 3600 + 35 * 60 + 5
    for attempts, planned in enumerate(DELAYS_S, start=1):
        delays = [delay_s(attempts) for _ in range(50)]
        assert all(planned <= delay <= planned * 1.2 for delay in delays)
        assert len(set(delays)) > 1
    assert delay_s(10) is None
    assert delay_s(11) is None


def test_a_receiver_may_ask_for_a_longer_pause_but_not_for_ever() -> None:
    assert delay_s(1, retry_after_s=600) == 600
    assert delay_s(1, retry_after_s=1e12) == 86400
    assert delay_s(2, retry_after_s=1) >= 300
    assert delay_s(10, retry_after_s=600) is None
