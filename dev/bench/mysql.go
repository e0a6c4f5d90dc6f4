package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/hasplock/hasp/internal/backends"
)

var mysqlStore = store{
	name: "mysql",
	unit: "statements",
	start: func(p *backends.Program) endpoint {
		s := backends.StartMariaDB(p, backends.MariaDBOptions{Config: []string{"max_connections=5000"}})
		return endpoint{URL: s.URL(), Addrs: []string{s.Addr}}
	},
	contestants: func(e endpoint) []contestant {
		getlock := func(name, only, params string) contestant {
			c := haspOn(name, e.URL+"?connections=64&strategy=getlock"+params)
			c.floor, c.only = "floor (GET_LOCK)", only
			return c
		}
		storeURL := e.URL + "?connections=64" // as many as the floor has
		table := haspOn("hasp table", storeURL)
		table.waits = map[string]string{"S3-8": "floor (GET_LOCK)", "S3-64": "floor (GET_LOCK)", "S3-512": "floor (GET_LOCK)"}
		return []contestant{
			{name: "floor (row)", role: floor, told: true, open: insertFloor(e.URL)},
			table,
			{name: "floor (GET_LOCK)", plain: "GET_LOCK by hand", role: floor, open: getLockFloor(e.URL)},
			getlock("hasp getlock", throughout, ""),
			getlock("hasp getlock, no token", essentials, "&fence=off"),
		}
	},
	counter: func(e endpoint, _ contestant) (counter, error) {
		db, err := openMySQL(e.URL)
		if err != nil {
			return nil, err
		}
		return func() (n int64, err error) {
			var name string
			err = db.QueryRow("SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n)
			return n, err
		}, nil
	},
}

func openMySQL(storeURL string) (*sql.DB, error) {
	u, err := url.Parse(storeURL)
	if err != nil {
		return nil, err
	}
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.DBName = "tcp", u.Host, strings.Trim(u.Path, "/")
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.InterpolateParams = true // one round trip each
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(c)
	db.SetMaxIdleConns(64)
	return db, nil
}

// insertFloor inserts a row and deletes it, each a transaction.
func insertFloor(storeURL string) func(context.Context) (client, error) {
	return func(ctx context.Context) (client, error) {
		db, err := openMySQL(storeURL)
		if err != nil {
			return client{}, err
		}
		if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS floor (name VARBINARY(512) PRIMARY KEY, owner VARBINARY(200)) ENGINE=InnoDB"); err != nil {
			return client{}, err
		}
		return client{
			lock: func(ctx context.Context, name string) (func() error, error) {
				if _, err := db.ExecContext(ctx, "INSERT INTO floor VALUES (?, 'me')", name); err != nil {
					return nil, err
				}
				return func() error {
					_, err := db.ExecContext(context.WithoutCancel(ctx), "DELETE FROM floor WHERE name = ? AND owner = 'me'", name)
					return err
				}, nil
			},
			close: func() { db.Close() },
		}, nil
	}
}

// getLockFloor is the lock that people write by hand, thus the peer as well. It waits in the server.
func getLockFloor(storeURL string) func(context.Context) (client, error) {
	return func(context.Context) (client, error) {
		db, err := openMySQL(storeURL)
		if err != nil {
			return client{}, err
		}
		return client{
			lock: func(ctx context.Context, name string) (func() error, error) {
				c, err := db.Conn(ctx)
				if err != nil {
					return nil, err
				}
				var got int
				if err := c.QueryRowContext(ctx, "SELECT GET_LOCK(?, 3600)", name).Scan(&got); err != nil || got != 1 {
					c.Close()
					return nil, fmt.Errorf("GET_LOCK of %q: %d, %v", name, got, err)
				}
				return func() error {
					defer c.Close()
					return c.QueryRowContext(context.WithoutCancel(ctx), "SELECT RELEASE_LOCK(?)", name).Scan(&got)
				}, nil
			},
			close: func() { db.Close() },
		}, nil
	}
}
