"""Databases of metastores: new ones on the server, and one beside another that is a copy of it."""

from __future__ import annotations

import shutil

from sqlalchemy import create_engine, make_url, text

from headstone.lake.lake import Lake


def on_server(url: str, statement: str) -> None:
    server = make_url(url).set(drivername="postgresql+psycopg", database="postgres")
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()


def new_database(server: str, name: str, *, copy_of: str | None = None) -> str:
    """Its URL."""
    template = "" if copy_of is None else f" TEMPLATE {name_of(copy_of)}"
    on_server(server, f"CREATE DATABASE {name}{template}")
    return server.replace("/postgres?", f"/{name}?")


def another(url: str) -> str:
    """The URL of a database beside this one."""
    return url.replace("lake.db", "other.db") if url.startswith("sqlite") else url.replace("lake_", "other_")


def name_of(url: str) -> str:
    return str(make_url(url).database)


def make_another(url: str) -> None:
    """Empty; a file is made by whoever opens it."""
    if not url.startswith("sqlite"):
        on_server(url, f"CREATE DATABASE {name_of(another(url))}")


def back_up(lake: Lake, url: str) -> None:
    """As it is now, to the database beside it."""
    lake.metastore.close()
    if url.startswith("sqlite"):
        shutil.copy(url.removeprefix("sqlite:///"), another(url).removeprefix("sqlite:///"))
    else:
        on_server(url, f"CREATE DATABASE {name_of(another(url))} TEMPLATE {name_of(url)}")
