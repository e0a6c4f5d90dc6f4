package exporter

// Families are name, kind and further label of all metrics.
func Families() (all []string) {
	for _, m := range families {
		all = append(all, m.name+" "+m.kind+" "+m.of)
	}
	return all
}
