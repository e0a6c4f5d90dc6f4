package main

import (
	"fmt"
	"io"
)

// rivalReasons say on the users' page why another library, or the store's own lock used by hand, is
// faster somewhere. The key is the store and the contestant.
var rivalReasons = map[string]string{
	"redis/redsync": "It writes one key, and reads it again to delete it. hasp keeps a queue, an owner and a token in its script. redsync's waiters poll",
	"redis/bsm/redislock": "It writes one key with a plain SET. hasp keeps a queue, an owner and a token in its script, which takes the server longer. " +
		"With contention bsm/redislock polls: the client that releases usually takes the lock again without waiting",
	"redlock/redsync": "A waiter of hasp first enters a queue on all servers: fifteen requests for each lock where ten suffice without a queue. " +
		"redsync polls: the client that releases usually takes the lock again",
	"zookeeper/go-zookeeper": "Both read the whole queue to find the waiter in front. hasp reads it again when it is woken, since that waiter may have given up",
	"etcd/concurrency.Mutex": "hasp's values also carry the owner and a note, and its transactions compare more",
	"postgres/floor (advisory)": "It writes nothing: the lock lives in the server's memory and ends with the connection. " +
		"hasp also draws a token that grows over crashes of the server (`fence=off` does without), and with many waiters spreads them, so that PostgreSQL's search for deadlocks stays short",
	"mysql/floor (GET_LOCK)": "It writes nothing: the lock lives in the server's memory and ends with the connection. " +
		"hasp's SELECT also reads where the tokens begin, which grow over crashes of the server (`fence=off` does without), and where the lock is taken a procedure says so and waits",
	"file/gofrs/flock": "It makes one call of the kernel's and writes nothing: no token, no owner, no order of waiters. " +
		"hasp writes an entry into the queue's file, and wakes the next process through a named pipe",
}

// profiles are of hasp alone, for ten seconds each, beside other work (2026-11-25, etcd a day later; pprof of the client, perf of the server): shares of
// the client's processor time by the function that is running.
const profiles = `Where the client's processor time goes, in percent (pprof, hasp alone; the rest is of the Go runtime: the scheduler, and memory):

| | system calls | futex | hasp's code | the store's client | standard library |
| --- | ---: | ---: | ---: | ---: | ---: |
| redis S1 / S2 / S3-64 | 69 / 36 / 53 | 5 / 2 / 7 | 5 / 11 / 8 | 3 / 4 / 5 | 7 / 14 / 10 |
| redlock S3-64 | 52 | 4 | 7 | 3 | 11 |
| zookeeper S1 / S2 / S3-64 | 29 / 25 / 27 | 22 / 14 / 25 | 7 / 7 / 5 | 0 / 0 / 3 | 14 / 18 / 14 |
| etcd S1 / S2 / S3-64 | 34 / 12 / 28 | 15 / 6 / 11 | 1 / 5 / 3 | 13 / 12 / 16 | 6 / 13 / 8 |
| postgres table S1 / S2 | 45 / 48 | 5 / 1 | 2 / 6 | 9 / 15 | 9 / 10 |
| mysql table S1 / S2 / S3-64 | 33 / 51 / 26 | 25 / 7 / 13 | 9 / 7 / 6 | 4 / 6 / 9 | 1 / 3 / 10 |
| mysql getlock S2 | 52 | 2 | 5 | 3 | 12 |
| file S1 / S2 | 59 / 54 | 0 / 0 | 10 / 6 | - | 11 / 9 |

So what a client takes more than the floor is one more message to write and to read, and one more goroutine to wake, rather than code: a grant that comes to another process is read by a goroutine that wakes the waiter,
where the floor is told its turn. Of the servers' time at S3-64, 52 to 63 % are the kernel's with Redis and ZooKeeper (a quarter of all is the switch between processes), and 32 % with MariaDB, whose procedures take the rest.
`

// reasons say why a contestant misses a target, as far as it is known. They are printed where a
// target was missed, so that they need not be found again.
var reasons = []struct{ store, who, text string }{
	{"redis", "hasp queue", "Lock and unlock are two scripts of 12 µs each of the server's only thread, where the floor has a SET of 1 µs and one short script: " +
		"the script reads the clock, keeps the queue and draws the token. At S2 the server and the clients share two cores, so the server's time is missing to the clients. " +
		"At S3 the floor is told its turn inside its process; here a message goes through the server to another process, which wakes up for it. " +
		"At S5 each of 10,000 locks is extended every third of its TTL, 350 in a call."},
	{"redis", "hasp setnx", "As the queue's, with 18 µs a script: to share the format it keeps the token's counter and the waiters in separate keys. " +
		"A waiter that is woken has to ask for the lock: a third request for each contended acquisition."},
	{"redlock", "hasp", "Five servers and their clients on two cores: a request more to each of them weighs here, and would travel in parallel elsewhere. " +
		"An acquisition that waits is refused by five servers, granted by five and released at five: fifteen requests, where the floor, which is told its turn, has ten (ARCHITECTURE.md says why no release hands over). " +
		"At S5 each of five servers is asked for all locks, 256 in a call; a ticket notes what it may have at each of them, and which attempt that was."},
	{"zookeeper", "hasp queue", "Create, list and delete are three packets, where the floor has two and no queue. A contended acquisition adds a watch and its event. " +
		"With 64 and more, the lists grow with the queue. " +
		"At S2 an acquisition takes 156 µs of the client's processor and 668 of the server's, the floor's 89 and 712: the third packet. At S5 a third of the heap is the client library's watch of each lock's own node, a sixth our list of who listens to it. Of 64 contenders each acquisition is five requests; with 512 their renewals add a third to a half of one."},
	{"etcd", "hasp", "A contended acquisition enters, looks once and leaves: three requests, where the floor, which is told its turn, has two. To enter and to leave are transactions " +
		"that compare, and the values carry the owner and the note: they are larger than the floor's, for the client, for the server and in its log. Of the client's time hasp's code takes 1 to 5 %: grpc and HTTP/2 with the system calls, the goroutines that they wake and their garbage are nearly all. " +
		"At S5 each lock's own key is watched, which takes 80 bytes of the 1,015. With 512 the rest of the 3.5 requests are the renewals of 512 sessions, and enters of contenders who are not served within the time."},
	{"postgres", "hasp table", "One statement each, as the floor has; but it draws the token from the name's row, inserts the entry and looks at the session in one transaction, " +
		"and commits more write-ahead log. NOTIFY wakes every connection that listens in the database, also those without the waiter: here one for each of the 8 processes. " +
		"With a queue of 1,000 entries the 64 connections of the pool are counted as theirs. Places are given in the order in which transactions commit; grants out of the order of asking are of those whose transaction began within that time."},
	{"postgres", "hasp advisory", "The floor is a SELECT of one function. Here it also asks whether somebody waits, and draws the token from a sequence; nothing is written; " +
		"without tokens (`fence=off`) the rest of the distance is a connection of the pool's for each lock, and the check that it is still there. " +
		"At S1 a pair takes about 35 µs while the kernel keeps client and server on one processor, and 120 to 140 while it does not, here and at the floor; which of the two the median is of changes from run to run, and the processor time is the better measure. " +
		"With 512 each waiter passes two queues of the server's, so that none becomes so long that the search for deadlocks stops the server."},
	{"mysql", "hasp table", "An acquisition that waits is three calls of procedures, to enter, to wait and to leave, with eleven statements in tables and two commits: 1.2 ms of the server's processor time and 0.6 of the client's, " +
		"where GET_LOCK has two statements and writes nothing. On two cores that is the hand-over. Of 512 clients that ask at once each enters before most have been served, and connections call each procedure for the first time. " +
		"Alone, the row's UPDATE writes the holder's columns, and its release waits for the disk as the floor's does."},
	{"mysql", "hasp getlock", "The floor is a SELECT of one function. Here it also reads where the tokens begin, by a subquery: 10 µs more of the server's processor time and 5 of the client's for 20 and 27; nothing is written. " +
		"The client watches the connection of a lock, and the core its lease. Where the lock is taken a procedure is called, whose answer has one packet more."},
	{"file", "hasp", "The floor is one flock. Here an entry is written into the queue's file under such a lock, with token, owner and note, and taken out again; " +
		"a hand-over between processes writes into a named pipe, and costs the wake-up of a process on a machine without a free core. " +
		"At S2 nearly half of the time is in nine system calls; the two reads of the queue's page among them take a fifth of the time; mapped into memory they would cost nothing, but a file that somebody truncates would end the process. The kernel itself wakes a waiter of flock, in no order."},
	{"file", "hasp, local hand-over", "A hand-over between two goroutines takes 1.3 µs of processor time: a lease that ends and one that begins, two looks at the clock, two locks, and the " +
		"scheduler's waking of the one and parking of the other. It asks the store nothing."},
}

// because prints the reasons of those who have missed something.
func (r *report) because(w io.Writer) {
	missed := map[[2]string]bool{}
	for _, t := range targets() {
		if _, verdict, _ := t.check(r.Tables); verdict == "missed" {
			missed[[2]string{t.store, t.who}] = true
		}
	}
	first := true
	for _, reason := range reasons {
		if !missed[[2]string{reason.store, reason.who}] {
			continue
		}
		if first {
			fmt.Fprint(w, "## Why they were missed\n\nKnown from counts, from the servers' statistics, and from profiles of clients and servers that were made apart from this run.\n\n", profiles, "\n")
			first = false
		}
		fmt.Fprintf(w, "- **%s, %s.** %s\n", reason.store, reason.who, reason.text)
	}
	if !first {
		fmt.Fprintln(w)
	}
}
