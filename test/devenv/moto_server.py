# Runs moto's server, whose queues have three faults that Amazon SQS has not: requests at the same
# time get the same messages, or messages of one group; of messages of a group that are visible again
# a later one is delivered first; and requests at the same time undo each other, because each delete
# replaces the list of messages by a copy without one. So a queue has one request at a time.
import functools
import sys
import threading
import time

from moto.server import main
from moto.sqs.models import Queue, SQSBackend

receive = SQSBackend.receive_message
lock = threading.RLock()
SOON = 100  # milliseconds; a request takes less


def receive_alone(self, queue_name, count, wait_seconds_timeout, *args):
    until = time.monotonic() + wait_seconds_timeout
    while True:
        with lock:
            queue = self.get_queue(queue_name)
            for message in list(queue.pending_messages):
                if message.visible_at < time.time() * 1000 + SOON:
                    message.visible_at = 0
                    queue.pending_messages.discard(message)
            messages = receive(self, queue_name, count, 0, *args)
        if messages or time.monotonic() >= until:
            return messages
        time.sleep(0.05)


def alone(method):
    @functools.wraps(method)
    def locked(*args, **kwargs):
        with lock:
            return method(*args, **kwargs)

    return locked


SQSBackend.receive_message = receive_alone
for owner, names in (
    (Queue, ("add_message", "delete_message")),
    (SQSBackend, ("change_message_visibility", "purge_queue")),
):
    for name in names:
        setattr(owner, name, alone(getattr(owner, name)))
main(sys.argv[1:])
