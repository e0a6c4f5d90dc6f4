"""refresh/main.go in Python."""
import json, os, sys, urllib.error, urllib.request

import hasplock

url, file, endpoint = sys.argv[1:]
client = hasplock.Client(url)


def load():
    with open(file) as f:
        return json.load(f)


def fresh(tokens):
    return tokens["Access"] != "expired"


def store(tokens):
    following = f"{file}.{os.getpid()}"
    with open(following, "w") as f:
        json.dump(tokens, f)
    os.replace(following, file)


def refresh(token):
    with urllib.request.urlopen(endpoint, token.encode()) as answer:
        return json.load(answer)


def access_token():
    tokens = load()
    if not fresh(tokens):
        with client.lock("token/github"):
            tokens = load()  # again: another may have refreshed it while we waited
            if not fresh(tokens):
                tokens = refresh(tokens["Refresh"])
                store(tokens)  # under the lock, for the next one's look
    return tokens["Access"]


try:
    print(access_token(), "<nil>")
except urllib.error.HTTPError:
    print(" invalid_grant")
client.close()
