// Package linear asks whether any order of grants and ends explains the whole record of a lock, with
// porcupine. It sees what the checks of package history cannot, and is slower. It is apart from
// them, so that a program which judges a lock (hasp-torture) does not link what only tests need.
package linear
