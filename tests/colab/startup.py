"""What a kernel runs first that plays Colab: it is known as Colab, hides no warning of ours, and reaches no network."""


def _play_colab():
    import sys
    import warnings
    from types import ModuleType

    google = ModuleType("google")
    google.colab = ModuleType("google.colab")
    sys.modules |= {"google": google, "google.colab": google.colab}

    # Deprecations, which Python shows to few: those in helpers, and an argument that an ipywidgets 7 does not know.
    warnings.filterwarnings("default", module=r"helpers\b")
    warnings.filterwarnings("default", message="Passing unrecognized arguments")

    def refuse(event, arguments):
        # Processes that a chapter starts, the bootstrap cell's pip first of all, are not heard here.
        if event not in ("socket.connect", "socket.getaddrinfo"):
            return
        host = arguments[1] if event == "socket.connect" else arguments[0]
        if isinstance(host, tuple):
            host = host[0]
        elif event == "socket.connect":
            return  # a local socket, which has a path
        host = host.decode() if isinstance(host, bytes) else host
        if host and host != "localhost" and host != "::1" and not host.startswith("127."):
            raise ConnectionRefusedError(f"a chapter needs no network, and this one asks for {host}")

    sys.addaudithook(refuse)


_play_colab()
del _play_colab
