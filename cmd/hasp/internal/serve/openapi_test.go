package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/httplock"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/internal/testkit"
)

// messages are the types of what is sent, by their names in the document.
var messages = []any{
	httpapi.Store{}, httpapi.Traits{}, httpapi.OpenSession{}, httpapi.Session{}, httpapi.Alive{}, httpapi.Late{}, httpapi.Lost{}, httpapi.Events{},
	httpapi.Acquire{}, httpapi.Changed{}, httpapi.Lock{}, httpapi.AdoptLock{}, httpapi.Value{}, httpapi.Smaller{}, httpapi.Queue{}, httpapi.Entry{},
	httpapi.NameList{}, httpapi.EvictEntry{}, httpapi.Text{}, httpapi.Closed{}, httpapi.Findings{}, driver.Finding{}, httpapi.Problem{},
}

// document has the parts of openapi.json that the tests read.
type document struct {
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]schema }
}

type operation struct {
	OperationID string
	Responses   map[string]struct {
		Content map[string]struct{ Schema schema }
	}
}

type schema struct {
	Ref                  string `json:"$ref"`
	Type                 string
	Format               string
	Enum                 []string
	Required             []string
	Properties           map[string]schema
	Items                *schema
	AdditionalProperties *bool
}

func readDocument(t *testing.T) document {
	t.Helper()
	var d document
	if err := json.Unmarshal(openAPI, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// The document has the routes that there are, and no others.
func TestDocumentedRoutes(t *testing.T) {
	var documented, served []string
	for path, ops := range readDocument(t).Paths {
		for method := range ops {
			documented = append(documented, strings.ToUpper(method)+" "+path)
		}
	}
	for _, r := range api {
		served = append(served, r.pattern)
	}
	slices.Sort(documented)
	slices.Sort(served)
	if !slices.Equal(documented, served) {
		t.Errorf("documented are\n%s\nserved are\n%s", strings.Join(documented, "\n"), strings.Join(served, "\n"))
	}
}

// What clients and servers of version 1 say to each other. A field or a path that both sides may pass
// over is added without another number, and may be left out (omitempty); all else needs one, in each
// path.
func TestWireFormat(t *testing.T) {
	var said []string
	for _, r := range api {
		said = append(said, r.pattern)
	}
	for _, m := range messages {
		text := reflect.TypeOf(m).Name()
		for _, f := range reflect.VisibleFields(reflect.TypeOf(m)) {
			text += fmt.Sprintf(" %s:%s", f.Tag.Get("json"), f.Type)
		}
		said = append(said, text)
	}
	problems := httpapi.ProblemTypes()
	slices.Sort(problems)
	testkit.SameFormat(t, "the API", 1, append(said, problems...), "46b8535970417291")
}

// A client of another version is told what to do, by its own error: the Go client's is final.
func TestOtherVersion(t *testing.T) {
	s := httptest.NewServer((&Server{}).routes())
	defer s.Close()
	for path, want := range map[string]string{"/v2": "wants v2: bring both to one version", "/v12/session": "wants v12", "/v1/nothing": "no such path"} {
		r := testkit.Must[*http.Response](t)(http.Get(s.URL + path))
		defer r.Body.Close()
		var p httpapi.Problem
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil || !p.Of(httpapi.NotFound) || !strings.Contains(p.Detail, want) {
			t.Errorf("%s: %+v, %v", path, p, err)
		}
	}
	// And a server that has our version no more.
	later := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeProblem(w, httpapi.NewProblem(httpapi.NotFound, "it says what to do"))
	}))
	defer later.Close()
	_, err := httplock.New(t.Context(), later.URL, nil)
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "it says what to do") {
		t.Errorf("a server without our version: %v", err)
	}
}

// Its schemas have the fields of the messages, with their types; what a message can leave out is
// not required.
func TestDocumentedMessages(t *testing.T) {
	d := readDocument(t)
	seen := map[string]bool{}
	for _, m := range messages {
		typ := reflect.TypeOf(m)
		seen[typ.Name()] = true
		s, ok := d.Components.Schemas[typ.Name()]
		if !ok {
			t.Errorf("there is no schema %s", typ.Name())
			continue
		}
		fields := map[string]schema{}
		var required []string
		for _, f := range reflect.VisibleFields(typ) {
			name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous {
				continue
			}
			fields[name] = schemaOf(f.Type)
			if opts == "" {
				required = append(required, name)
			}
		}
		got := map[string]schema{}
		for name, p := range s.Properties {
			p.Enum = nil
			got[name] = p
		}
		if !reflect.DeepEqual(got, fields) {
			t.Errorf("%s is documented as\n%+v\nand is\n%+v", typ.Name(), show(got), show(fields))
		}
		slices.Sort(required)
		slices.Sort(s.Required)
		if !slices.Equal(required, s.Required) {
			t.Errorf("%s requires %q, and is sent with %q", typ.Name(), s.Required, required)
		}
	}
	for name := range d.Components.Schemas {
		if !seen[name] {
			t.Errorf("nothing is like the schema %s", name)
		}
	}
	var types []string
	for _, p := range httpapi.ProblemTypes() {
		types = append(types, httpapi.ProblemType+p)
	}
	documented := d.Components.Schemas["Problem"].Properties["type"].Enum
	slices.Sort(types)
	slices.Sort(documented)
	if !slices.Equal(types, documented) {
		t.Errorf("problems %q are documented, and there are %q", documented, types)
	}
}

// A lock that is adopted has the bounds of one that is acquired.
func TestDocumentedBounds(t *testing.T) {
	var d struct {
		Components struct {
			Schemas map[string]struct{ Properties map[string]map[string]any }
		}
	}
	if err := json.Unmarshal(openAPI, &d); err != nil {
		t.Fatal(err)
	}
	adopt := d.Components.Schemas["AdoptLock"].Properties
	for name, p := range d.Components.Schemas["Acquire"].Properties {
		if !reflect.DeepEqual(adopt[name], p) {
			t.Errorf("%s is documented as %v, and of an adoption as %v", name, p, adopt[name])
		}
	}
}

// The store's addresses are in the log, and in no answer: neither as numbers nor as names. What is
// quoted is a lock's name.
func TestNoAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"dial tcp 10.0.0.7:6379: connection refused":          "dial tcp (an address): connection refused",
		"read tcp [::1]:40000->[fe80::1%eth0]:6379: timeout":  "read tcp (an address)->(an address): timeout",
		"redis at redis-1.internal:6379 is silent":            "redis at (an address) is silent",
		"dial tcp: lookup redis on 10.0.0.2:53: no such host": "dial tcp: (an address) no such host",
		"postgres://db:5432/locks: refused":                   "postgres://(an address)/locks: refused",
		`the lock "a/deploy:80" is held until 23:10:05`:       `the lock "a/deploy:80" is held until 23:10:05`,
		"closed until 2026-11-27T23:10:05Z (SQLSTATE: 42501)": "closed until 2026-11-27T23:10:05Z (SQLSTATE: 42501)",
	} {
		if got := withoutAddresses(text); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func show(m map[string]schema) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		s := m[name]
		all = append(all, fmt.Sprintf("%s:%s%s%s(%v)", name, s.Type, s.Format, s.Ref, s.Items))
	}
	return all
}

// schemaOf is how a field's type must be documented.
func schemaOf(t reflect.Type) schema {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return schema{Type: "string", Format: "date-time"}
	case t == reflect.TypeFor[[]byte]():
		return schema{Type: "string", Format: "byte"}
	case t.Kind() == reflect.Slice:
		items := schemaOf(t.Elem())
		return schema{Type: "array", Items: &items}
	case t.Kind() == reflect.Struct:
		return schema{Ref: "#/components/schemas/" + t.Name()}
	case t.Kind() == reflect.String:
		return schema{Type: "string"}
	case t.Kind() == reflect.Bool:
		return schema{Type: "boolean"}
	default:
		return schema{Type: "integer", Format: "int64"}
	}
}

// ValidateAnswer says what is wrong with an answer of an operation, by the document. It is for the
// test that calls each.
func ValidateAnswer(pattern string, status int, body []byte) error {
	var d document
	if err := json.Unmarshal(openAPI, &d); err != nil {
		return err
	}
	method, path, _ := strings.Cut(pattern, " ")
	r, ok := d.Paths[path][strings.ToLower(method)].Responses[fmt.Sprint(status)]
	if !ok {
		return fmt.Errorf("status %d is not documented", status)
	}
	media, ok := r.Content["application/json"]
	if !ok {
		if len(r.Content) == 0 && len(body) > 0 {
			return fmt.Errorf("it has a body: %q", body)
		}
		return nil
	}
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return err
	}
	return d.check(media.Schema, v, "answer")
}

func (d document) check(s schema, v any, at string) error {
	if s.Ref != "" {
		named, ok := d.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
		if !ok {
			return fmt.Errorf("%s: no schema %s", at, s.Ref)
		}
		return d.check(named, v, at)
	}
	ok := false
	switch v := v.(type) {
	case map[string]any:
		ok = s.Type == "object"
		for name, x := range v {
			p, known := s.Properties[name]
			if !known {
				return fmt.Errorf("%s.%s is not documented", at, name)
			}
			if err := d.check(p, x, at+"."+name); err != nil {
				return err
			}
		}
		for _, name := range s.Required {
			if _, there := v[name]; !there {
				return fmt.Errorf("%s.%s is missing", at, name)
			}
		}
	case []any:
		ok = s.Type == "array"
		for _, x := range v {
			if err := d.check(*s.Items, x, at+"[]"); err != nil {
				return err
			}
		}
	case string:
		ok = s.Type == "string" && (s.Enum == nil || slices.Contains(s.Enum, v))
	case float64:
		ok = s.Type == "integer" && v == float64(int64(v))
	case bool:
		ok = s.Type == "boolean"
	}
	if !ok {
		return fmt.Errorf("%s is %v, and documented as %s %q", at, v, s.Type, s.Enum)
	}
	return nil
}

// Patterns lists the operations.
func Patterns() (all []string) {
	for _, r := range api {
		all = append(all, r.pattern)
	}
	return all
}
