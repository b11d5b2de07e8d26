"""A real FTP server for the tests: ftp_server.py FOLDER [PEM] [--no-replace | --no-rename]

One user, joe with the password secret. With a PEM file, TLS is required. It prints its port, then every command.
"""
import os
import sys

from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler, TLS_FTPHandler
from pyftpdlib.servers import FTPServer

folder, options = sys.argv[1], sys.argv[2:]
certificate = next((option for option in options if option.endswith(".pem")), None)


class Handler(TLS_FTPHandler if certificate else FTPHandler):
    def process_command(self, cmd, *args, **kwargs):
        print(cmd, *args, flush=True)
        super().process_command(cmd, *args, **kwargs)

    def ftp_RNTO(self, path):
        if "--no-rename" in options or "--no-replace" in options and os.path.exists(path):
            self.respond("550 Not done.")
        else:
            super().ftp_RNTO(path)


authorizer = DummyAuthorizer()
authorizer.add_user("joe", "secret", folder, perm="elradfmw")
Handler.authorizer = authorizer
Handler.auth_failed_timeout = 0
if certificate:
    Handler.certfile = certificate
    Handler.tls_control_required = True
    Handler.tls_data_required = True
server = FTPServer(("127.0.0.1", 0), Handler)
print("port", server.socket.getsockname()[1], flush=True)
server.serve_forever(handle_exit=False)
