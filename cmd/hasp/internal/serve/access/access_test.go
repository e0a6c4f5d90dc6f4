package access_test

import (
	"strings"
	"testing"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
)

func TestTokens(t *testing.T) {
	token, line, err := access.New("ci", "look,lock", "app/")
	if err != nil || strings.Contains(line, token) {
		t.Fatalf("%q, %v", line, err)
	}
	more := strings.Replace(strings.Replace(line, "app/", "shared/", 1), "look,lock", "look", 1)
	known, err := access.Read(strings.NewReader("# tokens\n\n" + line + "\n" + more + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	h := known.Find(token)
	if h == nil || h.Name != "ci" || !known.Has("ci") || known.Has("other") {
		t.Fatalf("found %+v", h)
	}
	for _, other := range []string{"", token + "x", token[1:], strings.ToLower(token)} {
		if known.Find(other) != nil {
			t.Errorf("%q is a token", other)
		}
	}
	for _, c := range []struct {
		right access.Right
		name  string
		may   bool
	}{
		{access.Lock, "app/x", true}, {access.Look, "app/x", true}, {access.Operate, "app/x", false}, {access.Lock, "app", false},
		{access.Look, "shared/x", true}, {access.Lock, "shared/x", false}, {access.Look, "", false},
	} {
		if h.May(c.right, c.name) != c.may {
			t.Errorf("%s of %q: %t", c.right, c.name, !c.may)
		}
	}
	if !h.MayAnywhere(access.Lock) || h.MayAnywhere(access.Operate) {
		t.Error("what it may anywhere is wrong")
	}
}

// A line for a certificate gives its rights to that name, and to no token.
func TestCertificates(t *testing.T) {
	known, err := access.Read(strings.NewReader("web look,lock app/ cert:web.example.com\nweb look * cert:web.example.com\n"))
	if err != nil {
		t.Fatal(err)
	}
	h := known.FindCertificate("web.example.com")
	if h == nil || h.Name != "web" || !h.May(access.Lock, "app/x") || !h.May(access.Look, "b") || h.May(access.Lock, "b") || !known.Certificates() {
		t.Errorf("found %+v", h)
	}
	for _, other := range []string{"", "web", "WEB.example.com", "web.example.com "} {
		if known.FindCertificate(other) != nil || known.Find(other) != nil {
			t.Errorf("%q is known", other)
		}
	}
	if known.Find("web.example.com") != nil {
		t.Error("the name of a certificate is a token")
	}
	_, line, err := access.New("ci", "look", "*")
	if err != nil {
		t.Fatal(err)
	}
	if known, err = access.Read(strings.NewReader(line)); err != nil || known.Certificates() || known.FindCertificate("") != nil {
		t.Errorf("a token is a certificate (%v)", err)
	}
}

// A line that is wrong is named by its number, and not shown: it may have a hash, or a token.
func TestRefusedLines(t *testing.T) {
	_, line, err := access.New("ci", "look", "*")
	if err != nil {
		t.Fatal(err)
	}
	hash := strings.Fields(line)[3]
	for _, bad := range []string{
		"ci look *", "ci look * " + hash[7:], "ci look * sha256:12", "ci see * " + hash, "ci look, * " + hash, "ci look * cert:",
		"ci look * cert:a\nci look * cert:b", "ci look * cert:a\nother look * cert:a", "ci look * " + hash + " x",
		line + "\nother look * " + hash, line + "\nci look * sha256:" + strings.Repeat("0", 64),
	} {
		_, err := access.Read(strings.NewReader("#\n" + bad))
		if err == nil || !strings.HasPrefix(err.Error(), "line ") || strings.Contains(err.Error(), hash[7:]) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := access.Read(strings.NewReader("# none\n")); err != access.ErrEmpty {
		t.Errorf("an empty file: %v", err)
	}
	for _, bad := range [][3]string{{"", "look", ""}, {"a b", "look", ""}, {"a", "", ""}, {"a", "look", "x y"}, {"#a", "look", ""}} {
		if _, _, err := access.New(bad[0], bad[1], bad[2]); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
