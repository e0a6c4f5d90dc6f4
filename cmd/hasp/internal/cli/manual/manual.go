// Package manual has the long parts of the help.
package manual

// Topics are the parts of the help that belong to no verb: hasp help NAME.
var Topics = []struct{ Name, Short, Text string }{
	{"stores", "how the store is named, and what each can do", stores},
	{"environment", "flags by variables, and the variables of the command", environment},
	{"exit-codes", "what each exit code means", exitCodes},
}

const stores = `STORE
  --store URL, or HASP_STORE, or store in a configuration file; without any the
  file store of this user on this machine: $XDG_STATE_HOME/hasp or
  ~/.local/state/hasp, for root /var/lib/hasp.
  So two users of a machine do not share locks unless they name a store. Every
  message that a lock is free or waited for says in which store. A store that is
  named but empty is refused (78), and so is the default one where require-store is
  set: "require-store = yes" in /etc/hasp/config of machines that share locks.
  hasp never shows a password in the URL, but give it by HASP_STORE: every user
  can read a command line until hasp has masked it.

STORES
  file:///dir               the processes of one machine
  redis:// rediss:// redlock:// etcd:// zookeeper:// postgres:// mysql://
  s3://bucket/prefix        a bucket, with ttl=60s or so
  kube://namespace          a cluster's Leases
  hasp+http:// hasp+https://  a server of hasp serve, with what its store can
  hasp doctor says what the store in use promises. Some features are missing on
  some stores:
    --shared and --permits  not on redlock, s3, kube; not with strategy=setnx,
                            redisson, node, advisory, getlock: their formats
                            have one holder per lock
    elect                   not with setnx, redisson, advisory, getlock
    HASP_TOKEN              not on redlock
    ls, release --force     not on redlock, nor with MySQL's getlock
    deadlocks, --on-ask, release without --force
                            not on redlock, s3, kube, nor with setnx, redisson,
                            node, advisory, getlock: they do not show who waits
  hasp refuses them there (78). docs/GUARANTEES.md has the table.`

const environment = `FLAGS BY ENVIRONMENT
  Nearly every flag can be set as HASP_ and its name in capitals, '-' as '_', as
  its help shows: HASP_WAIT=30s, HASP_NO_WAIT=true. The command line wins.
  Durations are 30s, 5m, 1h30m; a bare number is seconds. A TTL of more than 24h
  needs --allow-long-ttl: a crashed holder would block others for so long. These
  variables are not passed on to the command that hasp runs, except HASP_STORE: a
  setting for all can stand in the store's URL (?ttl=60s). A HASP_ variable that
  hasp does not know is refused (78): it may be HASP_STORE, mistyped.

ENVIRONMENT OF THE COMMAND
  HASP_NAME      the lock's name
  HASP_TOKEN     the fencing token; absent where the store has none. hasp fence
                 writes under it
  HASP_HOLDER    the id of this run's entry, as hasp who shows it. Through hasp
                 serve the entry may have another one: with a token without
                 the right to operate, and when a server has ended.
                 These three are absent with several locks. With -l each lock
                 has HASP_NAME_1, HASP_TOKEN_1, HASP_HOLDER_1 and so on, by its
                 place among the -l
  HASP_SLOT      with --slots the number of the slot, from 0
  HASP_DEADLINE  the end of trust in the lock at the start (RFC 3339); each
                 renewal moves it; absent where nothing expires
  HASP_STORE     the store in use, without user name and password
  HASP_HELD      the locks held for this command and for those around it (JSON)
  Of verbs of hasp, only hasp fence takes defaults from these.
  Credentials that hasp uses for its store (in HASP_STORE, or the variables of
  that store such as PGPASSWORD with postgres://) are removed unless
  --pass-credentials is given; in hasp's environment they are masked.
  A nested run that would wait for a lock of an ancestor is refused (78).`

const exitCodes = `EXIT CODES
  0-255  the command's own
  128+n  the command was killed by signal n, or hasp was while it waited
  1      the answer is no: who --held, elect --observe --once
  64     usage
  69     store unreachable, or it did not answer in time; --wait covers that, and
         elect tries until a signal comes, which ends it with 0
  70     internal error
  75     busy, or the wait ended (--busy-code, --skip-ok change it); or no holder
         is known, and a Redis that may have forgotten locks grants none yet
         (--skip-ok waits for that); with hasp deadlocks, a cycle was found
  76     lock lost, command stopped; or, with hasp fence, a stale token
  78     configuration: bad or empty store URL, not supported there, nested lock;
         or the store refuses: no permission, read-only, full; with hasp doctor,
         the store breaks a promise
  124    --max-hold ended, command stopped
  126    command not executable
  127    command not found
  A command may use these numbers itself: --status-fd and --json give the true
  outcome.`

// Elect is the part of elect's help that it shares with run.
const Elect = `hasp run --help says how the command runs: its process group, signals, the loss of
the lock, requests for it. A TERM for CMD at a loss is the end of the lead.`

// Run is the long part of run's help.
const Run = `The command is executed as it is, never through a shell, and owns standard input,
output and error. It runs in a separate process group. hasp releases the lock when
the whole group is gone, with all that the command left in the background. A
process that leaves the group (setsid: daemons; the jobs of a shell with job
control) is neither waited for nor stopped, unless --wait-daemons is given (Linux).

You may leave out -- if no argument behind NAME begins with '-', and without -l. Else
an argument could be meant for hasp or for CMD, and hasp refuses the line (64).

hasp help environment has the variables of the command, hasp help exit-codes the
codes.

SIGNALS
  INT, TERM, HUP, QUIT, USR1, USR2 and WINCH are forwarded to the group. After a
  second INT or TERM the group is killed, a second or --kill-after later: Ctrl-C
  twice ends everything. A command that reads from the terminal is put in its
  foreground, and then only the command gets Ctrl-C and Ctrl-Z.
  If hasp is killed with -9, a second process kills the group. If it is stopped
  with -STOP, it cannot watch a lock that expires: only HASP_TOKEN helps then.
  Processes of another user (sudo) cannot be signalled: hasp says so, keeps trying,
  and keeps waiting.
  If HUP, INT or a signal of job control was ignored when hasp started, the command
  ignores it, too. All other signals have their default effect on it.

LOSS
  A lock on a server is lost if it cannot be renewed. With --on-lost kill the
  group gets TERM when the rest of the trust is --kill-after or a quarter (the
  shorter one), and KILL when trust ends: until then no other client can have the
  lock. If the store says without warning that the lock is gone, KILL comes at
  once. With signal:NAME hasp sends that signal at the loss, and the rest is up to
  the command; with ignore it sends none.

REQUESTS
  A user may ask for the lock and say why (hasp release NAME --reason WHY). hasp
  looks when a renewal is due, each third of the TTL, and says so on standard error
  and --status-fd. With --on-ask stop the group gets TERM then, and KILL
  --kill-after later; with signal:NAME it gets that signal. Both have the store
  tell at once, which costs a watch on the name. With ignore hasp does not look.

PARENT
  A time-out that kills only the shell leaves hasp and the command running. With
  --with-parent hasp ends when the process that started it has ended, by kill -9
  too: the group gets TERM, and KILL --kill-after later; a hasp that waits leaves
  the queue. It looks five times a second. In ( ) that process is the subshell.

SEVERAL LOCKS
  -l NAME -l NAME takes all the locks or none, in an order that all clients share:
  two such runs never wait for each other in a cycle. The loss of one is the loss
  of all. --any NAME NAME... takes one lock, the first that is free; if none is, it
  waits in the queues of all (of more than 16, of 16 drawn at random). --slots N
  NAME takes one of the locks NAME/0 to NAME/N-1: a worker id, a device, a port.`

// Config documents the configuration files.
const Config = `CONFIGURATION FILES
  ~/.config/hasp/config and then /etc/hasp/config set what neither the command
  line nor the environment has set. A line is "key = value"; a key is the name of
  a flag that has a variable. A line that begins with # is a comment.
    # locks of the deploy team
    store = redis://:secret@db.example.org
    ttl = 30s
  Unknown keys and bad values are errors (78) that name file and line. A file with
  a password must be readable by its owner alone (chmod 600); one that belongs to
  another user than root and you, or that others may write, is refused.
  $XDG_CONFIG_HOME takes the place of ~/.config. Root's is that of its account,
  not that of HOME. A command under hasp run finds the same files, other than
  variables. hasp config shows what is in force.
`

// Background is the part of the help of hold that is about --background.
const Background = `FOR A CODING AGENT, WHOSE CALLS END EARLY AND HAVE A NEW SHELL EACH
  hasp hold --background --pid $PPID NAME takes a place and returns at once: with 0
  if the lock is held, with 75 and the place in the queue if it is waited for. A
  background process keeps the place, and the lock, until hasp release --mine, until
  process --pid ends in any way, or until --max-wait and --max-hold. In a shell that
  the agent has started $PPID is the agent.
  hasp who --mine --wait 100s NAME waits for the lock (75: not yet), and later says
  whether it is held (0), or not any more (76); release --mine gives the lock or the
  place back. They need no variable: they ask for --pid, or for the nearest process
  above them that has asked. Other agents are not meant. Asking again answers the
  same place; after a loss, 76 once, and then it begins anew.
  Standard output is one JSON object: state, name, store, token, place, message.`

// Export is the part of the help of hold that is about --export.
const Export = `OVER SEVERAL STEPS OF A SCRIPT
  eval "$(hasp hold --export NAME)" waits for the lock and goes on. A background
  process holds it until hasp release --mine, until the shell ends in any way
  (kill -9 too), or until --max-hold. A subshell counts as its shell. hasp who
  --mine exits with 0 while the lock is held and with 76 when it is not; so does
  hasp release --mine if the lock was not held to the end. Both take NAMEs if the
  shell has several such locks. Several are taken together, all or none, with -l as
  in hasp run; they are lost and given back together, too.
  If there is no lock, the text ends a script with hasp's exit code, also one
  without set -e; an interactive shell only gets the code as its status. To decide
  yourself: text=$(hasp hold --export NAME) || ...; eval "$text". That also ends
  where hasp is missing or was killed: then there is no text, and eval does nothing.
  Called by a program that waits for it (timeout, sudo, a script), or in a script
  without a #! line, hasp cannot see which shell is meant. The text then gives the
  lock back and ends the script with 78. Name the shell: --pid $$, and with it
  --on-lost stop if it is to get TERM on a loss.
  The text sets HASP_NAME, HASP_TOKEN, HASP_HOLDER, HASP_DEADLINE and HASP_HELD as
  for a command of hasp run (with -l HASP_NAME_1 and so on), and HASP_HOLD, the holder's socket. It has no
  password and no HASP_STORE.
  On a loss the shell gets TERM (--on-lost stop); with signal:NAME that signal,
  with ignore none. Standard error says it in any case. A command that the shell
  is running does not get the signal and works on: hasp run ends all in time, and
  is better wherever one command can do all of the work.
  A CI job with a new shell for each step: bind the lock to a process that
  outlives these (--pid N), or to a time (--pid 0 --max-hold 30m), and hand the
  HASP_ variables to the next step. The holder then has no standard error.
  The end of a process is told by the system on Linux (pidfd) and looked for each
  second elsewhere; there name the shell, --pid $$, since $(...) may be another
  process than the shell.`
