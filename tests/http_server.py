"""A small HTTP server on this machine, for tests."""

import http.server
import threading


class Server(http.server.ThreadingHTTPServer):
    """A server on this machine that answers every request with one status and records the requests."""

    def __init__(self, status: int) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            do_POST = do_PUT = do_HEAD = do_CONNECT = do_GET

            def log_message(self, *words: object) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
