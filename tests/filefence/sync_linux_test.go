package filefence_test

import (
	"os"
	"syscall"
	"testing"
	"unsafe"
)

// dirty counts the pages of a file that are in memory only. ok is false where the kernel or the
// file system cannot tell.
func dirty(t *testing.T, path string) (pages uint64, ok bool) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const cachestat = 451 // on every architecture
	var whole struct{ off, length uint64 }
	var c struct{ cached, dirty, writeback, evicted, recent uint64 }
	_, _, errno := syscall.Syscall6(cachestat, f.Fd(), uintptr(unsafe.Pointer(&whole)), uintptr(unsafe.Pointer(&c)), 0, 0, 0)
	return c.dirty + c.writeback, errno == 0
}

// A writer is killed when it has written its token and not yet synced it. The next call with the
// same token, of a process that goes on with the lease or tries again, must not take what it
// reads for what is on the disk: a power loss would leave the new file and an old fence.
func TestSeenTokenIsSynced(t *testing.T) {
	path := file(t)
	for _, token := range []uint64{7, 8} {
		if err := advance(t.Context(), path, token); err != nil {
			t.Fatal(err)
		}
	}
	written := []byte(content(t, sidecar(path)))

	killed := file(t)
	if err := os.WriteFile(sidecar(killed), written, 0o600); err != nil {
		t.Fatal(err)
	}
	if pages, ok := dirty(t, sidecar(killed)); !ok || pages == 0 {
		t.Skip("it cannot be seen here what is on the disk")
	}
	if err := advance(t.Context(), killed, 8); err != nil {
		t.Fatal(err)
	}
	if pages, _ := dirty(t, sidecar(killed)); pages != 0 {
		t.Errorf("%d pages of the sidecar are not on the disk, and the token was let pass", pages)
	}
	if got := content(t, sidecar(killed)); got != string(written) {
		t.Error("writing the token again has changed the sidecar")
	}
}
