"""A real S3 API on loopback (moto) behind a middleware that delays, fails and counts.

Tests run it on a thread; `python tests/s3_server.py` serves benchmarks from its own process.
"""

import argparse
import json
import logging
import socket
import threading
import time

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server


class Faults:
    """WSGI middleware in front of the S3 app."""

    def __init__(self, app, latency=0.0):
        self.app, self.latency = app, latency
        self.lock = threading.Lock()
        self.num_requests = 0
        self.num_bytes = 0  # Bodies of GET requests for objects.
        self.errors_left = 0  # Requests that get a 503.
        self.cuts_left = 0  # GET requests whose body stops in its middle.
        self.down = False  # Every connection is dropped.
        self.forbidden = False

    def __call__(self, environ, start_response):
        if environ["PATH_INFO"] == "/__stats__":
            start_response("200 OK", [])
            return [json.dumps([self.num_requests, self.num_bytes]).encode()]
        time.sleep(self.latency)
        is_get = environ["REQUEST_METHOD"] == "GET"
        with self.lock:
            self.num_requests += 1
            failing = self.errors_left > 0
            cutting = is_get and not failing and self.cuts_left > 0
            self.errors_left -= failing
            self.cuts_left -= cutting
        if self.down:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError("the network is down")
        if failing or self.forbidden:
            status = "403 Forbidden" if self.forbidden else "503 Slow Down"
            start_response(status, [("Content-Length", "0")])
            return [b""]
        body = b"".join(self.app(environ, start_response))
        if is_get:
            with self.lock:
                self.num_bytes += len(body)
        if cutting:
            return iter([body[: len(body) // 2]])  # Less than Content-Length promises.
        return [body]


class S3Server:
    """Serves until the `with` block ends."""

    def __init__(self, latency=0.0, port=0):
        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        self.faults = Faults(DomainDispatcherApplication(create_backend_app), latency)
        self.server = make_server("127.0.0.1", port, self.faults, threaded=True)
        self.server.log = lambda *args, **kwargs: None
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.storage_options = {
            "key": "key",
            "secret": "secret",
            "client_kwargs": {"endpoint_url": self.url},
            "config_kwargs": {"retries": {"total_max_attempts": 1, "mode": "standard"}},
            "use_listings_cache": False,
        }

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=0.0)
    with S3Server(parser.parse_args().latency) as server:
        print(server.url, flush=True)
        server.thread.join()
