"""Why a route could not be made, found or removed."""


class RouteError(Exception):
    """A virtual microphone that can't be had; the message names cause and cure.

    `code` is one of the wire's: `device_unavailable` (no sound server answers), `missing_asset` (a program or a
    driver is not installed), `state_unwritable` (a configuration folder), `failed` (the server refused).
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
