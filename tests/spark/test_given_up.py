"""py4j's log of a JVM that has gone: nothing of a run that was given up, all of any other."""

from __future__ import annotations

import logging
import os
import socket
import struct
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from py4j.clientserver import SHUTDOWN_FINALIZER_WORKER, FinalizerWorker, JavaClient, JavaParameters, PythonParameters
from py4j.java_gateway import GatewayClient, GatewayParameters, GatewayProperty, PythonProxyPool

from headstone.interruption import Request, Threads, heard_as
from headstone.spark.given_up import silence_finalizer, silence_py4j
from headstone.spark.jvm_output import JvmOutput, failure_is_told
from headstone.spark.session import _terminate, _wake

LINGER = struct.pack("ii", 1, 0)
"""Closed with a reset: whoever waits for an answer hears an error."""


@pytest.fixture
def port() -> Iterator[int]:
    """Of a JVM that goes whenever it is asked something."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    asked, _ = server.accept()
                except OSError:
                    return
                with asked:
                    asked.recv(1024)
                    asked.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def ask(port: int) -> None:
    GatewayClient(gateway_parameters=GatewayParameters(port=port)).send_command("m\n", retry=False)


@pytest.mark.parametrize("given_up", [True, False])
def test_an_answer_that_will_not_come_is_logged_unless_the_run_was_given_up(
    port: int, given_up: bool, caplog: pytest.LogCaptureFixture
) -> None:
    silence_py4j()
    request = Request()
    with heard_as(request), Threads(1) as threads:
        if given_up:
            request.give_up()
        threads.submit(ask, port).result()
        logging.getLogger().error("ours")
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ([] if given_up else ["Exception while sending command."]) + ["ours"]
    caplog.clear()
    ask(port)
    assert [record.getMessage() for record in caplog.records] == ["Exception while sending command."]


@pytest.mark.parametrize("given_up", [True, False])
def test_an_object_that_nothing_is_left_to_free_is_logged_unless_the_run_was_given_up(
    port: int, given_up: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """py4j frees objects on a thread of its own, which it has started before the run is known."""
    silence_py4j()
    request, queue = Request(), deque[object]()
    worker = FinalizerWorker(queue)
    client = JavaClient(JavaParameters(port=port), PythonParameters(), GatewayProperty(True, PythonProxyPool()), queue)
    with heard_as(request):
        silence_finalizer(SimpleNamespace(_gateway_client=client))
    if given_up:
        request.give_up()
    queue.extendleft([(client, "o1"), SHUTDOWN_FINALIZER_WORKER])
    worker.start()
    worker.join()
    assert [record.getMessage() for record in caplog.records] == (
        [] if given_up else ["Exception while sending command."]
    )


@pytest.mark.parametrize("told", [True, False])
def test_the_traces_of_failed_tasks_are_shown_where_nobody_tells_why_they_failed(
    told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    output = JvmOutput()
    output.pass_on()
    failed = ["26/11/19 20:39:08 ERROR Executor: Exception in task 0.0 in stage 2.0 (TID 1)\n", "\tat a.Frame\n",
              "26/11/19 20:39:08 ERROR TaskSetManager: Task 0 in stage 2.0 failed 1 times; aborting job\n"]  # fmt: skip
    other = ["26/11/19 20:39:09 ERROR Utils: a disk is slow\n", "said by nobody\n"]
    with output:
        os.write(output.writer, "".join([*failed, *other]).encode())
    output.held()
    assert capsys.readouterr().err == "".join(other)
    if told:
        failure_is_told()
    output.end()
    assert capsys.readouterr().err == ("" if told else "".join(failed))


def test_what_a_jvm_and_its_workers_say_of_their_end_is_shown_to_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    output = JvmOutput()
    says = "trap 'echo BrokenPipeError >&2; exit' TERM; echo begun >&2; echo ready; while :; do read line; done"
    with output, subprocess.Popen(
        ["sh", "-c", says], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output.writer
    ) as jvm:  # fmt: skip
        assert jvm.stdout is not None
        assert jvm.stdout.readline() == b"ready\n"
        output.pass_on()
        _terminate(jvm, output)
        jvm.wait(60)
    output.held()
    assert "BrokenPipe" not in capsys.readouterr().err


def test_the_end_of_a_session_whose_jvm_refuses_the_connection_raises_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    client = JavaClient(JavaParameters(port=port), PythonParameters(), GatewayProperty(True, PythonProxyPool()))
    done, tries = threading.Event(), 0

    def merge(accumulator: object) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            done.set()
        client.send_command("m\n")

    _wake(merge, None, done)
    assert tries == 2
