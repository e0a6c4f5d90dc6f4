package cli

// exportManual is the part of the help of hold that is about --export.
const exportManual = `OVER SEVERAL STEPS OF A SCRIPT
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
