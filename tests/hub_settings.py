"""Settings that must stand before the Hub client is imported: no account of this machine, short timeouts."""

import os

os.environ.pop("HF_TOKEN", None)
os.environ["HF_TOKEN_PATH"] = os.devnull
os.environ["HF_HUB_DOWNLOAD_TIMEOUT"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
