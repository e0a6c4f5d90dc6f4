package kubelock_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/tests/internal/haspbin"
)

// collections are those of the kinds in the manifests.
var collections = map[string]string{
	"Namespace":                  "/api/v1/namespaces",
	"ServiceAccount":             "/api/v1/namespaces/%s/serviceaccounts",
	"Service":                    "/api/v1/namespaces/%s/services",
	"ConfigMap":                  "/api/v1/namespaces/%s/configmaps",
	"CronJob":                    "/apis/batch/v1/namespaces/%s/cronjobs",
	"Deployment":                 "/apis/apps/v1/namespaces/%s/deployments",
	"Role":                       "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/roles",
	"RoleBinding":                "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/rolebindings",
	"PriorityLevelConfiguration": "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
	"FlowSchema":                 "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
}

// apply does what kubectl apply --server-side does, and refuses fields that the server does not know.
// It returns the first answer that is none of success.
func (c cluster) apply(t testing.TB, text []byte) (objects []object, refused object) {
	t.Helper()
	for _, part := range bytes.Split(text, []byte("\n---\n")) {
		asJSON, err := yaml.ToJSON(part)
		if err != nil {
			t.Fatal(err)
		}
		o := object{}
		if err := json.Unmarshal(asJSON, &o); err != nil {
			t.Fatal(err)
		}
		kind, metadata := o["kind"].(string), o["metadata"].(object)
		path := collections[kind]
		if path == "" {
			t.Fatalf("a manifest has the kind %q", kind)
		}
		if strings.Contains(path, "%s") {
			path = fmt.Sprintf(path, metadata["namespace"])
		}
		path += "/" + metadata["name"].(string) + "?fieldManager=kubectl&fieldValidation=Strict"
		status, answer := c.send(t, http.MethodPatch, path, "application/apply-patch+yaml", part)
		if status >= 300 {
			return objects, answer
		}
		objects = append(objects, answer)
	}
	return objects, nil
}

// applied is apply, of what must be right.
func (c cluster) applied(t testing.TB, text []byte) []object {
	t.Helper()
	objects, refused := c.apply(t, text)
	if refused != nil {
		t.Fatal(refused["message"])
	}
	return objects
}

// tokenOf makes a token of a service account in the namespace default.
func (c cluster) tokenOf(t testing.TB, account string) string {
	t.Helper()
	answer := c.ask(t, http.MethodPost, "/api/v1/namespaces/default/serviceaccounts/"+account+"/token", object{"spec": object{"expirationSeconds": 3600}})
	return answer["status"].(object)["token"].(string)
}

// as is the command with the rights of a token.
func (c cluster) as(t testing.TB, token, namespace string) command {
	t.Helper()
	return command{t, haspbin.Build(t), "kube://" + namespace + "?kubeconfig=" + kubeconfig(t, c.Addr, c.CA, token)}
}

// manifests applies once more what kustomize has made of the manifests, which changes nothing. A
// field that is mistyped is refused. The commands of the containers do what the page says, with the
// rights of their service account; the image and the pods are not tried.
func (c cluster) manifests(t *testing.T, text []byte, objects []object) {
	t.Helper()
	kinds := map[string]int{}
	for i, o := range c.applied(t, text) {
		kinds[o["kind"].(string)]++
		for _, x := range []object{objects[i], o} { // the server keeps these
			delete(x, "status")
			delete(x["metadata"].(object), "managedFields")
			delete(x["metadata"].(object), "resourceVersion")
		}
		if !reflect.DeepEqual(objects[i], o) {
			t.Errorf("the second time changes %v to %v", objects[i], o)
		}
	}
	for kind := range collections {
		if kinds[kind] == 0 {
			t.Errorf("there is no %s", kind)
		}
	}
	if _, refused := c.apply(t, bytes.Replace(text, []byte("serviceAccountName:"), []byte("serviceAcountName:"), 1)); refused == nil {
		t.Error("a mistyped field passes: this check is none")
	}

	x := c.as(t, c.tokenOf(t, "hasp"), "hasp-locks")
	var commands [][]string
	for _, o := range objects {
		containers(o, func(command []string) { commands = append(commands, command) })
	}
	if len(commands) != 4 {
		t.Fatalf("the containers' commands: %q", commands)
	}
	slices.SortFunc(commands, func(a, b []string) int { return strings.Compare(b[1], a[1]) }) // run, run, exporter, elect
	for _, command := range commands {
		if command[0] != "hasp" {
			t.Fatalf("%q", command)
		}
		switch command[1] {
		case "run":
			x.run(0, command[1:]...)
		case "elect":
			command[slices.Index(command, "$(POD_IP)")] = "10.0.0.7"
			x.start(command[1:]...)
			testkit.Eventually(t, "the leader", func() bool {
				cmd, out := x.command("elect", "--observe", "--once", "orders")
				return cmd.Run() == nil && strings.Contains(out.String(), "10.0.0.7")
			})
		case "exporter":
			command[slices.Index(command, ":9747")] = "127.0.0.1:0"
			x.scrape(command[1:])
		}
	}
}

// containers tells the commands in an object.
func containers(v any, found func([]string)) {
	switch v := v.(type) {
	case object:
		for key, x := range v {
			if list, is := x.([]any); is && key == "command" {
				var command []string
				for _, word := range list {
					command = append(command, word.(string))
				}
				found(command)
			} else {
				containers(x, found)
			}
		}
	case []any:
		for _, x := range v {
			containers(x, found)
		}
	}
}

var metricsAt = regexp.MustCompile(`http://\S+`)

// scrape starts an exporter, which must see the names of the store.
func (x command) scrape(args []string) {
	x.t.Helper()
	c, _ := x.command(args...)
	from, to := io.Pipe()
	c.Stderr = to
	if err := c.Start(); err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
		to.Close()
	})
	line := make([]byte, 4096)
	n, err := from.Read(line)
	go io.Copy(io.Discard, from)
	if err != nil {
		x.t.Fatal(err)
	}
	at := metricsAt.FindString(string(line[:n]))
	reply, err := http.Get(at)
	if err != nil {
		x.t.Fatalf("%q: %v", line[:n], err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		x.t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^hasp_exporter_success\{.*\} 1$`).Match(text) {
		x.t.Errorf("the exporter:\n%s", text)
	}
}

// The rights that each verb needs are those in the page's table: with them it works, and with one
// less it is refused. Without the right to watch a waiter asks once a second.
func TestRightsOfVerbs(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "verbs"
	c.namespace(t, ns)
	admin := c.client(t, ns)
	testkit.Release(t, testkit.Lock(t, admin, "used"))
	leads := newCommand(t, c, ns)
	leads.start("elect", "--value", "10.0.0.8", "led", "--", "sleep", "1000")
	testkit.Eventually(t, "the leader", func() bool {
		cmd, out := leads.command("elect", "--observe", "--once", "led")
		return cmd.Run() == nil && strings.Contains(out.String(), "10.0.0.8")
	})
	for _, x := range []struct {
		verbs string
		args  []string
	}{
		{"get,update", []string{"run", "used", "--", "true"}},
		{"get,create,update", []string{"run", "NEW", "--", "true"}},
		{"get,create,update", []string{"elect", "NEW", "--", "sh", "-c", "kill -TERM $PPID; sleep 1"}},
		{"get", []string{"who", "used"}},
		{"get,list", []string{"ls"}},
		{"get,list,watch,create,update,delete", []string{"doctor"}},
	} {
		verbs := strings.Split(x.verbs, ",")
		for _, without := range append([]string{""}, verbs...) {
			t.Run(fmt.Sprint(x.args[0], " ", x.verbs, " without ", without), func(t *testing.T) {
				account := fmt.Sprint("verbs-", len(verbs), x.args[0], len(x.args), without)
				token := c.withRights(t, ns, account, slices.DeleteFunc(slices.Clone(verbs), func(v string) bool { return v == without }))
				args := slices.Clone(x.args)
				for i := range args {
					if args[i] == "NEW" {
						args[i] = account
					}
				}
				cmd, out := c.as(t, token, ns).command(args...)
				// A candidate outlasts what it is refused, and says so.
				end := time.AfterFunc(10*time.Second, func() { cmd.Process.Signal(syscall.SIGTERM) })
				err := cmd.Run()
				end.Stop()
				if without == "" && err != nil {
					t.Errorf("%v: %s", err, out)
				}
				if without != "" && (err == nil && (args[0] == "run" || args[0] == "who" || args[0] == "ls") || !strings.Contains(out.String(), "leases in coordination.k8s.io") && !strings.Contains(out.String(), "no right to "+without)) {
					t.Errorf("it is not refused: %v: %s", err, out)
				}
			})
		}
	}
}

// The exporter needs the rights of ls.
func TestRightsOfExporter(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "exported"
	testkit.Lock(t, c.client(t, ns), "held")
	c.as(t, c.withRights(t, ns, "exporter", []string{"get", "list"}), ns).scrape([]string{"exporter", "--listen", "127.0.0.1:0"})
}

// withRights makes a service account with these verbs of Leases, and returns its token when the
// server knows the rights.
func (c cluster) withRights(t testing.TB, namespace, account string, verbs []string) string {
	t.Helper()
	roles := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace
	c.ask(t, http.MethodPost, "/api/v1/namespaces/default/serviceaccounts", object{"metadata": object{"name": account}})
	if len(verbs) > 0 {
		c.ask(t, http.MethodPost, roles+"/roles", object{"metadata": object{"name": account}, "rules": []any{object{
			"apiGroups": []string{"coordination.k8s.io"}, "resources": []string{"leases"}, "verbs": verbs,
		}}})
		c.ask(t, http.MethodPost, roles+"/rolebindings", object{
			"metadata": object{"name": account}, "roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
			"subjects": []any{object{"kind": "ServiceAccount", "namespace": "default", "name": account}},
		})
	}
	for _, verb := range verbs {
		testkit.Eventually(t, "the right to "+verb, func() bool {
			answer := c.ask(t, http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", object{"spec": object{
				"user":               "system:serviceaccount:default:" + account,
				"resourceAttributes": object{"namespace": namespace, "verb": verb, "group": "coordination.k8s.io", "resource": "leases"},
			}})
			allowed, _ := answer["status"].(object)["allowed"].(bool)
			return allowed
		})
	}
	return c.tokenOf(t, account)
}
