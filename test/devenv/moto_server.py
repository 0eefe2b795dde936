# Runs moto's server, whose queues have two faults that Amazon SQS has not: requests at the same time
# get the same messages, or messages of one group; and of messages of a group that are visible again
# a later one is delivered first.
import sys
import threading
import time

from moto.server import main
from moto.sqs.models import SQSBackend

receive = SQSBackend.receive_message
lock = threading.Lock()
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


SQSBackend.receive_message = receive_alone
main(sys.argv[1:])
