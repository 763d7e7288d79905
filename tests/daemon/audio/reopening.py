"""A program under test: opens a stream, and again in the same process when it is lost; tells each as a JSON line.

Arguments: input output opens. Ends after so many openings, each with callbacks.
"""

import json
import os
import sys
import time

from myna.daemon.audio.backend import DeviceError, StreamRequest
from myna.daemon.audio.open import open_stream


def main() -> None:
    source_name, sink_name, opens = sys.argv[1:4]
    refused: list[str] = []
    for count in range(1, int(opens) + 1):
        while True:
            try:
                stream = open_stream(StreamRequest(input=source_name, output=sink_name, rate_hz=48000))
                stream.start()
                break
            except DeviceError as error:
                refused.append(error.reason)
                time.sleep(0.1)
        while stream.sink is not None and stream.sink.stats()["callbacks"] < 10 and stream.ended() is None:
            time.sleep(0.01)
        print(json.dumps({f"opened_{count}": True, "refused": sorted(set(refused))}), flush=True)
        while count < int(opens) and stream.ended() is None:
            time.sleep(0.01)
        stream.close()
    print(json.dumps({"closed": True}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
