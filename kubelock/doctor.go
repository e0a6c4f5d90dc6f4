package kubelock

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hasplock/hasp/driver"
)

// doctor collects findings. What it may not see it says: the Role that locks need gives no right to
// look at the cluster's settings, and shall not.
type doctor struct {
	*store
	ctx   context.Context
	found []driver.Finding
}

// Diagnose examines the cluster, as far as these credentials allow it.
func (s *store) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	d := &doctor{store: s, ctx: ctx}
	if err := d.version(); err != nil {
		return nil, err
	}
	if err := d.verbs(); err != nil {
		return d.found, err
	}
	d.leases()
	d.quotas()
	d.webhooks()
	d.priority()
	return d.found, ctx.Err()
}

func (d *doctor) add(level driver.Level, subject, cure, format string, args ...any) {
	d.found = append(d.found, driver.Finding{Level: level, Subject: subject, Text: fmt.Sprintf(format, args...), Cure: cure})
}

// get reads what lies elsewhere than the Leases.
func (d *doctor) get(path string, into any) error {
	within, cancel := d.bounded(d.ctx)
	defer cancel()
	text, err := d.client.Get().AbsPath(path).MaxRetries(0).DoRaw(within)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// unseen tells that a reading has failed; it reports whether it has.
func (d *doctor) unseen(subject, what string, err error) bool {
	if err != nil {
		why := d.explain(d.ctx, err)
		if apierrors.IsForbidden(err) {
			why = fmt.Errorf("these credentials have no right to read them, and locks need none")
		}
		d.add(driver.Info, subject, "", "%s were not seen: %v", what, why)
	}
	return err != nil
}

// comparable is the minor version from which on Kubernetes promises that resourceVersions can be
// compared.
const comparable = 35

func (d *doctor) version() error {
	var v struct{ Major, Minor, GitVersion string }
	if err := d.get("/version", &v); err != nil {
		return d.explain(d.ctx, err)
	}
	minor, err := strconv.Atoi(strings.TrimRight(v.Minor, "+"))
	if err != nil || v.Major == "1" && minor < comparable {
		d.add(driver.Warn, "version", "upgrade to 1.35, or ask the distribution whether its resourceVersions are revisions of one store, as those of etcd are",
			"Kubernetes %s: fencing tokens are resourceVersions, which are promised to grow from 1.35 on", v.GitVersion)
		return nil
	}
	d.add(driver.Info, "version", "", "Kubernetes %s: resourceVersions, which are the fencing tokens, only grow", v.GitVersion)
	return nil
}

// verbs asks for each right by a SelfSubjectAccessReview, which every user may.
func (d *doctor) verbs() error {
	var missing []string
	for _, verb := range []string{"get", "list", "watch", "create", "update", "delete"} {
		allowed, err := d.allowed(verb)
		if err != nil {
			return d.explain(d.ctx, err)
		}
		if !allowed {
			missing = append(missing, verb)
		}
	}
	const cure = "grant the Role of docs/backends/kubernetes.md"
	switch text := strings.Join(missing, ", "); {
	case len(missing) == 0:
		d.add(driver.Info, "rights", "", "get, list, watch, create, update and delete of leases in %s", d.namespace)
	case text == "delete":
		d.add(driver.Warn, "rights", cure, "no right to delete leases in %s: those of names that are used no more are never swept", d.namespace)
	default:
		d.add(driver.Bad, "rights", cure, "no right to %s leases in %s", text, d.namespace)
	}
	return nil
}

func (d *doctor) allowed(verb string) (bool, error) {
	within, cancel := d.bounded(d.ctx)
	defer cancel()
	question, err := json.Marshal(map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
		"spec": map[string]any{"resourceAttributes": map[string]string{
			"namespace": d.namespace, "verb": verb, "group": "coordination.k8s.io", "resource": "leases",
		}},
	})
	if err != nil {
		return false, err
	}
	text, err := d.client.Post().AbsPath("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").
		SetHeader("Content-Type", "application/json").MaxRetries(0).Body(question).DoRaw(within)
	var answer struct{ Status struct{ Allowed bool } }
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	return answer.Status.Allowed, err
}

// leases looks at what others keep in the namespace.
func (d *doctor) leases() {
	ours, foreign, other := 0, []string{}, []string{}
	o := meta.ListOptions{Limit: listed}
	for {
		page, err := d.page(d.ctx, d.client, &o)
		if d.unseen("leases", "the Leases of the namespace", err) {
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
	if len(other) > 0 {
		d.add(driver.Info, "leases", "", "%d Leases that hasp refuses as names (they have an owner, a strategy, a preferred holder, or a record that this build does not understand): %s", len(other), some(other))
	}
	switch {
	case len(foreign) == 0:
		d.add(driver.Info, "leases", "", "%d of hasp's, none of other programs", ours)
	case d.namespace == "kube-system":
		d.add(driver.Bad, "leases", "take a namespace for locks, such as hasp-locks", "%d of other programs: the cluster's controllers elect here, and each program that may lock may depose them", len(foreign))
	default:
		d.add(driver.Info, "leases", "", "%d of hasp's, and %d that client-go's leader election or another program uses: who may update Leases here may depose its leader (%s)", ours, len(foreign), some(foreign))
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
func (d *doctor) quotas() {
	var all struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct{ Hard, Used map[string]string }
		}
	}
	const counted = "count/leases.coordination.k8s.io"
	if d.unseen("quota", "resource quotas", d.get("/api/v1/namespaces/"+d.namespace+"/resourcequotas", &all)) {
		return
	}
	none := true
	for _, q := range all.Items {
		hard, bounded := q.Status.Hard[counted]
		if !bounded {
			continue
		}
		none = false
		most, err1 := strconv.Atoi(hard)
		used, err2 := strconv.Atoi(q.Status.Used[counted])
		if err1 != nil || err2 != nil || used*10 >= most*9 {
			d.add(driver.Warn, "quota", "raise it, or shorten retention", "the quota %s allows %s Leases, %s are there: new names will be refused, those that have a Lease are not", q.Metadata.Name, hard, q.Status.Used[counted])
		} else {
			d.add(driver.Info, "quota", "", "the quota %s allows %s Leases, %s are there", q.Metadata.Name, hard, q.Status.Used[counted])
		}
	}
	if none {
		d.add(driver.Info, "quota", "", "none bounds the Leases of %s", d.namespace)
	}
}

// webhooks are asked before each write.
func (d *doctor) webhooks() {
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
		if d.unseen("webhooks", kind, d.get("/apis/admissionregistration.k8s.io/v1/"+kind, &all)) {
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
	if len(asked) > 0 {
		d.add(driver.Warn, "webhooks", "leave Leases, or this namespace, out of their rules", "asked before writes of Leases: %s: while one of them is slow or down, so are the locks", some(asked))
		return
	}
	d.add(driver.Info, "webhooks", "", "none is asked before writes of Leases")
}

// priority looks under which priority level the server has put a request of ours: it says so in the
// answer's header, by the uid.
func (d *doctor) priority() {
	within, cancel := d.bounded(d.ctx)
	defer cancel()
	url := d.on(d.client, http.MethodGet, "").VersionedParams(&meta.ListOptions{Limit: 1}, parameters()).URL()
	request, err := http.NewRequestWithContext(within, http.MethodGet, url.String(), nil)
	if err != nil {
		return
	}
	reply, err := d.client.Client.Do(request)
	if d.unseen("priority", "priority levels", err) {
		return
	}
	reply.Body.Close()
	uid := reply.Header.Get("X-Kubernetes-Pf-Prioritylevel-Uid")
	if uid == "" {
		d.add(driver.Info, "priority", "", "the server does not say a priority level")
		return
	}
	var all struct {
		Items []struct{ Metadata struct{ Name, UID string } }
	}
	if d.unseen("priority", "priority levels", d.get("/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations", &all)) {
		return
	}
	for _, level := range all.Items {
		switch name := level.Metadata.Name; {
		case level.Metadata.UID != uid:
		case slices.Contains([]string{"workload-low", "global-default", "catch-all"}, name):
			d.add(driver.Warn, "priority", "apply the FlowSchema of docs/backends/kubernetes.md", "requests are in the level %s, with those of most other programs: renewals wait behind theirs", name)
		default:
			d.add(driver.Info, "priority", "", "requests are in the level %s", name)
		}
	}
}
