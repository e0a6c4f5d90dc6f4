// Package httplock keeps locks at a server of `hasp serve`, which keeps them in its store: for programs
// that cannot, or should not, reach the store themselves. Importing it registers the URL schemes
// hasp+http and hasp+https with hasp.Open:
//
//	hasp+http://127.0.0.1:7070
//	hasp+https://TOKEN@locks.example.com[?token_file=FILE&ca=FILE&cert=FILE&key=FILE&servername=NAME]
//
// The token may be in the file that token_file names instead. It is sent over TLS, or to this machine,
// and nowhere else. Parameters ca, cert, key and servername say what is special about TLS.
//
// # What is promised
//
// What the store behind the server promises: Traits are the store's, as the server says when the URL is
// opened. A keep-alive goes through the server to the store and back, and is counted from before it was
// sent here, which is before the server sent its own. So a lock is given up in time, also if
// the server dies or either network is silent.
//
// A server that has ended or was started anew has forgotten its sessions. What is held is then adopted by the
// server that answers, if the store can hand a lock on (driver.Adopter); otherwise it is lost (hasp.ErrLost), before
// the store may grant it to others. What waits queues again. What is exported stays where it is, for what is left of
// its time. A release that meets such a server may have an unknown outcome (hasp.ErrUnknown). docs/SERVE.md has more.
//
// A session has one request open, however many of its locks are held and waited for: its answer tells
// of losses and of grants.
package httplock
