package kubelock

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/doctor"
)

// examination collects findings, also about what it has no right to read: the Role that locks need
// gives no right to look at the cluster's settings, and shall not.
type examination struct {
	doctor.Report
	*store
	ctx context.Context
}

// Diagnose examines the cluster, as far as these credentials allow it.
func (s *store) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	x := &examination{store: s, ctx: ctx}
	if err := x.version(); err != nil {
		return nil, err
	}
	if err := x.verbs(); err != nil {
		return x.Found, err
	}
	x.leases()
	x.quotas()
	x.webhooks()
	x.priority()
	return x.Found, ctx.Err()
}

// bounded is for one request: what hangs is a finding, and hides none of the others.
func (x *examination) bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(silent(x.ctx), 10*time.Second)
}

// get reads what lies elsewhere than the Leases.
func (x *examination) get(path string, into any) error {
	within, cancel := x.bounded()
	defer cancel()
	text, err := x.client.Get().AbsPath(path).MaxRetries(0).DoRaw(within)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// unseen tells that a reading has failed; it reports whether it has.
func (x *examination) unseen(subject, what string, err error) bool {
	if err != nil {
		why := x.explain(x.ctx, err)
		if apierrors.IsForbidden(err) {
			why = fmt.Errorf("these credentials have no right to read them, and locks need none")
		}
		x.Add(driver.Info, subject, fmt.Sprintf("%s were not seen: %v", what, why), "")
	}
	return err != nil
}

// comparableMinor is the minor version from which on Kubernetes promises that resourceVersions can be
// compared.
const comparableMinor = 35

func (x *examination) version() error {
	var v struct{ Major, Minor, GitVersion string }
	if err := x.get("/version", &v); err != nil {
		return x.explain(x.ctx, err)
	}
	minor, err := strconv.Atoi(strings.TrimRight(v.Minor, "+"))
	x.When(err != nil || v.Major == "1" && minor < comparableMinor, driver.Warn, "version",
		fmt.Sprintf("Kubernetes %s: fencing tokens are resourceVersions, which are promised to grow from 1.35 on", v.GitVersion),
		"upgrade to 1.35, or ask the distribution whether its resourceVersions are revisions of one store, as those of etcd are")
	x.Else("version", fmt.Sprintf("Kubernetes %s: resourceVersions, which are the fencing tokens, only grow", v.GitVersion))
	return nil
}

// Warnings tells of a right without which waiters ask, and hear of a release late.
func (s *store) Warnings(ctx context.Context) ([]driver.Finding, error) {
	x := &examination{store: s, ctx: ctx}
	allowed, err := x.allowed("watch")
	x.When(!allowed && err == nil, driver.Bad, "rights",
		"no right to watch leases in "+s.namespace+": who waits asks once a second, and without the right to list, hears of a release up to two TTLs late", grantRole)
	return x.Found, err
}

const grantRole = "grant the Role of docs/backends/kubernetes.md"

// verbs asks for each right by a SelfSubjectAccessReview, which every user may.
func (x *examination) verbs() error {
	var missing []string
	for _, verb := range []string{"get", "list", "watch", "create", "update", "delete"} {
		allowed, err := x.allowed(verb)
		if err != nil {
			return x.explain(x.ctx, err)
		}
		if !allowed {
			missing = append(missing, verb)
		}
	}
	text := strings.Join(missing, ", ")
	x.When(text == "delete", driver.Warn, "rights", "no right to delete leases in "+x.namespace+": those of names that are used no more are never swept", grantRole)
	x.When(text != "", driver.Bad, "rights", fmt.Sprintf("no right to %s leases in %s", text, x.namespace), grantRole)
	x.Else("rights", "get, list, watch, create, update and delete of leases in "+x.namespace)
	return nil
}

func (x *examination) allowed(verb string) (bool, error) {
	within, cancel := x.bounded()
	defer cancel()
	question, err := json.Marshal(map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
		"spec": map[string]any{"resourceAttributes": map[string]string{
			"namespace": x.namespace, "verb": verb, "group": "coordination.k8s.io", "resource": "leases",
		}},
	})
	if err != nil {
		return false, err
	}
	text, err := x.client.Post().AbsPath("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").
		SetHeader("Content-Type", "application/json").MaxRetries(0).Body(question).DoRaw(within)
	var answer struct{ Status struct{ Allowed bool } }
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	return answer.Status.Allowed, err
}

// leases looks at what others keep in the namespace.
func (x *examination) leases() {
	ours, foreign, other := 0, []string{}, []string{}
	o := meta.ListOptions{Limit: listed}
	for {
		within, cancel := x.bounded()
		page, err := x.page(within, x.client, &o)
		cancel()
		if x.unseen("leases", "the Leases of the namespace", err) {
			return
		}
		for i := range page.Items {
			l := &page.Items[i]
			r, err := record(l)
			switch {
			case err != nil:
				other = append(other, l.Name)
			case r.Foreign || l.Annotations[annotation] == "":
				foreign = append(foreign, l.Name)
			default:
				ours++
			}
		}
		if o.Continue = page.Continue; o.Continue == "" {
			break
		}
	}
	n := len(foreign)
	x.When(n > 0 && x.namespace == "kube-system", driver.Bad, "leases",
		fmt.Sprintf("%d of other programs: the cluster's controllers elect here, and each program that may lock may depose them", n), "take a namespace for locks, such as hasp-locks")
	x.When(n > 0, driver.Info, "leases",
		fmt.Sprintf("%d of hasp's, and %d that client-go's leader election or another program uses: who may update Leases here may depose its leader (%s)", ours, n, some(foreign)), "")
	x.Else("leases", fmt.Sprintf("%d of hasp's, none of other programs", ours))
	if len(other) > 0 {
		x.Add(driver.Info, "leases", fmt.Sprintf("%d Leases that hasp refuses as names (they have an owner, a strategy, a preferred holder, or a record that this build does not understand): %s", len(other), some(other)), "")
	}
}

// some are the first of many names.
func some(names []string) string {
	const shown = 5
	if len(names) > shown {
		return strings.Join(names[:shown], ", ") + ", ..."
	}
	return strings.Join(names, ", ")
}

// quotas bound the number of Leases, and so of names.
func (x *examination) quotas() {
	var all struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct{ Hard, Used map[string]string }
		}
	}
	const counted = "count/leases.coordination.k8s.io"
	if x.unseen("quota", "resource quotas", x.get("/api/v1/namespaces/"+x.namespace+"/resourcequotas", &all)) {
		return
	}
	for _, q := range all.Items {
		hard, bounded := q.Status.Hard[counted]
		if !bounded {
			continue
		}
		most, err1 := strconv.Atoi(hard)
		used, err2 := strconv.Atoi(q.Status.Used[counted])
		text := fmt.Sprintf("the quota %s allows %s Leases, %s are there", q.Metadata.Name, hard, q.Status.Used[counted])
		if err1 != nil || err2 != nil || used*10 >= most*9 {
			x.Add(driver.Warn, "quota", text+": new names will be refused, those that have a Lease are not", "raise it, or shorten retention")
		} else {
			x.Add(driver.Info, "quota", text, "")
		}
	}
	x.Else("quota", "none bounds the Leases of "+x.namespace)
}

// webhooks are asked before each write.
func (x *examination) webhooks() {
	var asked []string
	for _, kind := range []string{"validatingwebhookconfigurations", "mutatingwebhookconfigurations"} {
		var all struct {
			Items []struct {
				Metadata struct{ Name string }
				Webhooks []struct {
					Rules []struct{ APIGroups, Resources []string }
				}
			}
		}
		if x.unseen("webhooks", kind, x.get("/apis/admissionregistration.k8s.io/v1/"+kind, &all)) {
			return
		}
		for _, c := range all.Items {
			for _, w := range c.Webhooks {
				for _, r := range w.Rules {
					group := slices.Contains(r.APIGroups, "*") || slices.Contains(r.APIGroups, "coordination.k8s.io")
					if group && slices.ContainsFunc(r.Resources, func(s string) bool { return s == "*" || s == "*/*" || s == "leases" }) {
						asked = append(asked, c.Metadata.Name)
					}
				}
			}
		}
	}
	slices.Sort(asked)
	asked = slices.Compact(asked)
	x.When(len(asked) > 0, driver.Warn, "webhooks", "asked before writes of Leases: "+some(asked)+": while one of them is slow or down, so are the locks",
		"leave Leases, or this namespace, out of their rules")
	x.Else("webhooks", "none is asked before writes of Leases")
}

// priority looks under which priority level the server has put a request of ours: it says so in the
// answer's header, by the uid.
func (x *examination) priority() {
	within, cancel := x.bounded()
	defer cancel()
	url := x.on(x.client, http.MethodGet, "").VersionedParams(&meta.ListOptions{Limit: 1}, parameters()).URL()
	request, err := http.NewRequestWithContext(within, http.MethodGet, url.String(), nil)
	if err != nil {
		return
	}
	reply, err := x.client.Client.Do(request)
	if x.unseen("priority", "priority levels", err) {
		return
	}
	reply.Body.Close()
	uid := reply.Header.Get("X-Kubernetes-Pf-Prioritylevel-Uid")
	if uid == "" {
		x.Else("priority", "the server does not say a priority level")
		return
	}
	var all struct {
		Items []struct{ Metadata struct{ Name, UID string } }
	}
	if x.unseen("priority", "priority levels", x.get("/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations", &all)) {
		return
	}
	for _, level := range all.Items {
		if name := level.Metadata.Name; level.Metadata.UID == uid {
			x.When(slices.Contains([]string{"workload-low", "global-default", "catch-all"}, name), driver.Warn, "priority",
				"requests are in the level "+name+", with those of most other programs: renewals wait behind theirs", "apply the FlowSchema of docs/backends/kubernetes.md")
			x.Else("priority", "requests are in the level "+name)
		}
	}
}
