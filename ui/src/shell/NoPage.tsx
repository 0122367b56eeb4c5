import { Link } from '@tanstack/react-router'
import { Empty } from '../parts/Empty'

export function NoPage() {
  return (
    <>
      <h1 className="visually-hidden">No such page</h1>
      <Empty>
        There is no page with this address.{' '}
        <Link to="/executions" search={{}}>
          Show the executions
        </Link>
      </Empty>
    </>
  )
}
