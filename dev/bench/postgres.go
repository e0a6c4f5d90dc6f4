package main

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hasplock/hasp/internal/backends"
)

var postgresStore = store{
	name: "postgres",
	unit: "statements",
	start: func(p *backends.Program) endpoint {
		s := backends.StartPostgres(p, backends.PostgresOptions{Config: []string{
			"max_connections = 2500", "shared_preload_libraries = 'pg_stat_statements'",
		}})
		return endpoint{URL: s.URL(), Addrs: []string{s.Addr}}
	},
	contestants: func(e endpoint) []contestant {
		advisory := func(name, only, params string) contestant {
			c := haspOn(name, e.URL+"&prefix=bench_&connections=64&strategy=advisory"+params)
			c.floor, c.only = "floor (advisory)", only
			return c
		}
		storeURL := e.URL + "&prefix=bench_&connections=64" // as many as the floor has
		table := haspOn("hasp table", storeURL)
		table.waits = map[string]string{"S3-512": "floor (advisory)"}
		return []contestant{
			{name: "floor (row)", role: floor, told: true, open: rowFloor(e.URL)},
			table,
			{name: "floor (advisory)", plain: "pg_advisory_lock by hand", role: floor, open: advisoryFloor(e.URL)},
			advisory("hasp advisory", throughout, ""),
			advisory("hasp advisory, no token", essentials, "&fence=off"),
		}
	},
	counter: func(e endpoint, _ contestant) (counter, error) {
		pool, err := pgxpool.New(context.Background(), e.URL)
		if err != nil {
			return nil, err
		}
		if _, err := pool.Exec(context.Background(), "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"); err != nil {
			return nil, err
		}
		return func() (n int64, err error) {
			err = pool.QueryRow(context.Background(),
				"SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'").Scan(&n)
			return n, err
		}, nil
	},
}

func poolOf(ctx context.Context, storeURL string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(storeURL)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 64
	return pgxpool.NewWithConfig(ctx, cfg)
}

// rowFloor inserts a row and deletes it, each a commit.
func rowFloor(storeURL string) func(context.Context) (client, error) {
	return func(ctx context.Context) (client, error) {
		pool, err := poolOf(ctx, storeURL)
		if err != nil {
			return client{}, err
		}
		// The lock makes the contenders' first statements wait for each other: two CREATE IF
		// NOT EXISTS at once may both find nothing.
		if _, err := pool.Exec(ctx, `BEGIN; SELECT pg_advisory_xact_lock(1);
			CREATE TABLE IF NOT EXISTS floor (name text PRIMARY KEY, owner text, expires timestamptz); COMMIT`); err != nil {
			return client{}, err
		}
		return client{
			lock: func(ctx context.Context, name string) (func() error, error) {
				_, err := pool.Exec(ctx, "INSERT INTO floor VALUES ($1, $2, now() + interval '10 s')", name, "me")
				return func() error {
					_, err := pool.Exec(context.WithoutCancel(ctx), "DELETE FROM floor WHERE name = $1 AND owner = $2", name, "me")
					return err
				}, err
			},
			close: pool.Close,
		}, nil
	}
}

// advisoryFloor is the lock that people write with pgx, thus the peer as well. It waits in the server.
func advisoryFloor(storeURL string) func(context.Context) (client, error) {
	return func(ctx context.Context) (client, error) {
		pool, err := poolOf(ctx, storeURL)
		if err != nil {
			return client{}, err
		}
		return client{
			lock: func(ctx context.Context, name string) (func() error, error) {
				conn, err := pool.Acquire(ctx)
				if err != nil {
					return nil, err
				}
				var void any
				err = conn.QueryRow(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", name).Scan(&void)
				if err != nil {
					conn.Release()
					return nil, err
				}
				return func() error {
					defer conn.Release()
					var held bool
					return conn.QueryRow(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock(hashtextextended($1, 0))", name).Scan(&held)
				}, nil
			},
			close: pool.Close,
		}, nil
	}
}
