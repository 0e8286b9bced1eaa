"""Ask a web server behind a unix socket (argument 1) for pages, over and over, from four connections."""

import socket
import sys
import threading

PAGES = ["/word", "/", "/again/doc/", "/nothing", "/common-licenses/GPL-3", "/again/doc/"]


def ask() -> None:
    while True:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(sys.argv[1])
            for page in PAGES:
                lines = [f"GET {page} HTTP/1.1", "Host: x", "Accept-Encoding: gzip", "", ""]
                connection.sendall("\r\n".join(lines).encode())
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass


for _ in range(4):
    threading.Thread(target=ask).start()
