package driver

import "fmt"

// OtherFormat is the error for data of another version of hasp: what has the format found, and this
// program knows the format own. Clients of two formats would not exclude each other, so a driver
// refuses another number before it changes anything, whether it is greater or less. An operator who
// begins anew deletes what remove says; the locks that are held go with it.
func OtherFormat(what string, found, own int, remove string) error {
	if found > own {
		return fmt.Errorf("%w: %s has format %d, of a newer hasp, and this program knows format %d: update this program; or stop the newer ones, and remove %s",
			ErrInvalid, what, found, own, remove)
	}
	return fmt.Errorf("%w: %s has format %d, of an older hasp, and this program knows format %d: stop the older programs, and remove %s",
		ErrInvalid, what, found, own, remove)
}
