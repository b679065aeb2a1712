import logging
import threading

from ray import cloudpickle

from ctvr.orchestrator.on_ray.tracking_queue import TrackingQueue


def test_adding_a_job_does_not_wait_and_jobs_keep_their_order():
    records, answers, done = TrackingQueue(), threading.Event(), []
    records.add("the first", lambda: done.append(answers.wait(60)))
    records.add("the second", lambda: done.append("second"))
    assert not done
    answers.set()
    records.finish()
    assert done == [True, "second"]
    cloudpickle.loads(cloudpickle.dumps(records)).finish()  # Tune pickles what it is given


def test_failed_server_is_retried_at_the_end_without_loss(caplog):
    records, asked, is_back = TrackingQueue(), [], threading.Event()

    def job(name):
        asked.append(name)
        if not is_back.is_set():
            raise OSError("nobody answers")

    for name in "abc":
        records.add(name, lambda name=name: job(name))
    records.add("d", is_back.set)  # not done either: it waits with the others
    is_over = threading.Event()
    records._thread.submit(is_over.set)
    assert is_over.wait(60)
    assert asked == ["a"]
    assert not is_back.is_set()
    is_back.set()
    records.finish()
    assert asked == ["a", "a", "b", "c"]
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING
    records.finish()
    assert asked == ["a", "a", "b", "c"]


def test_what_fails_at_the_end_is_warned_of_once(caplog):
    records = TrackingQueue()

    def job():
        raise OSError("nobody answers")

    for name in ("the end of run a", "the end of run b", "the end of run c"):
        records.add(name, job)
    records.finish()
    said = [record.getMessage() for record in caplog.records]
    assert said[-1] == ("tracking: the end of run a was not recorded, nor were 2 further records: nobody answers")
    assert len(said) == 2
